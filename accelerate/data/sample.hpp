// SPDX-License-Identifier: Apache-2.0
// Takes one sample out of a batch, the inverse of collation.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <iterator>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/data/rebind.hpp"
#include "accelerate/data/rows.hpp"

namespace accelerate::data {

namespace detail {

at::Tensor row_of(const at::Tensor& tensor, int64_t row, int64_t rows);
void check_list(int64_t items, int64_t rows);

template <typename T>
auto sample_part(const T& batch, int64_t row, int64_t rows);

template <typename T, size_t... I>
auto sample_of_members(const T& batch, int64_t row, int64_t rows, std::index_sequence<I...>) {
  if constexpr (tree::detail::Struct<T>) {
    // The customization point takes T&, but nothing is modified.
    const auto members = tree::detail::members(const_cast<T&>(batch));
    using Members = std::remove_cvref_t<decltype(members)>;
    std::tuple<decltype(sample_part(std::get<I>(members), row, rows))...> sample{
        sample_part(std::get<I>(members), row, rows)...};
    if constexpr ((std::same_as<std::remove_cvref_t<std::tuple_element_t<I, Members>>,
                                std::tuple_element_t<I, decltype(sample)>> &&
                   ...)) {
      T same = batch;
      tree::detail::members(same) = std::move(sample);
      return same;
    } else {
      return sample;
    }
  } else {
    return rebind_tuple<T, decltype(sample_part(std::get<I>(batch), row, rows))...>{
        sample_part(std::get<I>(batch), row, rows)...};
  }
}

template <typename T>
auto sample_part(const T& batch, int64_t row, int64_t rows) {
  if constexpr (std::same_as<T, at::Tensor>) {
    return row_of(batch, row, rows);
  } else if constexpr (tree::detail::ItemPerRow<T>) {
    check_list(static_cast<int64_t>(batch.size()), rows);
    return typename T::value_type(*std::next(batch.begin(), row));
  } else if constexpr (tree::detail::Struct<T>) {
    using Members = decltype(tree::detail::members(std::declval<T&>()));
    return sample_of_members(batch, row, rows, std::make_index_sequence<std::tuple_size_v<Members>>());
  } else if constexpr (tree::detail::Tuple<T>) {
    return sample_of_members(batch, row, rows, std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (tree::detail::Map<T>) {
    using Value = decltype(sample_part(std::declval<const typename T::mapped_type&>(), row, rows));
    rebind_map<T, Value> sample;
    for (const auto& [key, member] : batch) sample.emplace(key, sample_part(member, row, rows));
    return sample;
  } else if constexpr (tree::detail::Sequence<T> && tree::holds_tensors<T>) {
    std::vector<decltype(sample_part(*batch.begin(), row, rows))> sample;
    for (const auto& member : batch) sample.push_back(sample_part(member, row, rows));
    return sample;
  } else if constexpr (tree::detail::IsOptional<T>::value) {
    std::optional<decltype(sample_part(*batch, row, rows))> sample;
    if (batch) sample.emplace(sample_part(*batch, row, rows));
    return sample;
  } else {
    return batch;
  }
}

}  // namespace detail

/// One sample of a batch of `rows`.
///
/// \returns the same structure: tensors [rows, ...] become views [...], and lists with one entry per sample become
///          their items; other parts are unchanged. A struct with such lists becomes a std::tuple.
template <typename AnyBatch>
[[nodiscard]] auto sample_of(const AnyBatch& batch, int64_t row, int64_t rows) {
  if constexpr (tree::detail::Samples<AnyBatch>) {
    detail::check_list(static_cast<int64_t>(batch.size()), rows);
    return typename AnyBatch::value_type(*std::next(batch.begin(), row));
  } else {
    return detail::sample_part(batch, row, rows);
  }
}

template <typename AnyBatch>
using sample_t = decltype(data::sample_of(std::declval<const AnyBatch&>(), 0, 0));

}  // namespace accelerate::data

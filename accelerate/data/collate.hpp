// SPDX-License-Identifier: Apache-2.0
// Collates samples into batches: PyTorch's default_collate, with and without padding.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/data/collate_leaves.hpp"
#include "accelerate/data/rebind.hpp"
#include "accelerate/tree/walk.hpp"

namespace accelerate::data {

namespace detail {

/// One part of every sample.
template <typename T>
using Parts = std::vector<const T*>;

template <typename T>
auto collate_parts(const Parts<T>& parts, const CollateWhere& where);

template <size_t I, typename T>
auto collate_member(const Parts<T>& parts, const CollateWhere& where) {
  const auto member = [](const T& sample) -> decltype(auto) {
    // The customization point takes T&, but nothing is modified.
    if constexpr (tree::detail::Struct<T>) {
      return std::get<I>(tree::detail::members(const_cast<T&>(sample)));
    } else {
      return std::get<I>(sample);
    }
  };
  using Member = std::remove_cvref_t<decltype(member(*parts.front()))>;
  Parts<Member> of_member;
  for (const T* sample : parts) of_member.push_back(&member(*sample));
  return collate_parts(of_member, where.in(where.path.member(I)));
}

template <typename T, size_t... I>
auto collate_struct(const Parts<T>& parts, const CollateWhere& where, std::index_sequence<I...>) {
  using Members = decltype(tree::detail::members(std::declval<T&>()));
  // A braced list evaluates in order.
  std::tuple<decltype(collate_member<I>(parts, where))...> collated{collate_member<I>(parts, where)...};
  if constexpr ((std::same_as<std::remove_cvref_t<std::tuple_element_t<I, Members>>,
                              std::tuple_element_t<I, decltype(collated)>> &&
                 ...)) {
    T batch = *parts.front();
    tree::detail::members(batch) = std::move(collated);
    return batch;
  } else {
    return collated;
  }
}

template <typename T, size_t... I>
auto collate_tuple(const Parts<T>& parts, const CollateWhere& where, std::index_sequence<I...>) {
  return rebind_tuple<T, decltype(collate_member<I>(parts, where))...>{collate_member<I>(parts, where)...};
}

template <typename T>
void check_lengths(const Parts<T>& parts, std::string_view what, const CollateWhere& where) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->size() != parts.front()->size()) fail_length(where, what, i, parts[i]->size(), parts.front()->size());
  }
}

template <typename T>
auto collate_map(const Parts<T>& parts, const CollateWhere& where) {
  using Value = typename T::mapped_type;
  rebind_map<T, decltype(collate_parts(std::declval<Parts<Value>>(), where))> batch;
  size_t place = 0;
  for (const auto& [key, value] : *parts.front()) {
    const LeafPath path = where.path.entry(key, place++);
    Parts<Value> values;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto found = parts[i]->find(key);
      if (found == parts[i]->end()) fail_key(where, path, i);
      values.push_back(&found->second);
    }
    batch.emplace(key, collate_parts(values, where.in(path)));
  }
  check_lengths(parts, "keys", where);
  return batch;
}

template <typename T>
auto collate_items(const Parts<T>& parts, const CollateWhere& where) {
  using Item = typename T::value_type;
  check_lengths(parts, "items", where);
  std::vector<typename T::const_iterator> next;
  for (const T* list : parts) next.push_back(list->begin());
  std::vector<decltype(collate_parts(std::declval<Parts<Item>>(), where))> batch;
  for (size_t place = 0; place < parts.front()->size(); ++place) {
    Parts<Item> items;
    for (auto& item : next) items.push_back(&*item++);
    batch.push_back(collate_parts(items, where.in(where.path.member(place))));
  }
  return batch;
}

template <typename T>
auto collate_optional(const Parts<T>& parts, const CollateWhere& where) {
  Parts<typename T::value_type> values;
  std::optional<decltype(collate_parts(values, where))> batch;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->has_value() != parts.front()->has_value()) throw_missing_key(where, i, parts[i]->has_value());
    if (*parts[i]) values.push_back(&**parts[i]);
  }
  if (!values.empty()) batch.emplace(collate_parts(values, where));
  return batch;
}

template <typename T>
auto collate_parts(const Parts<T>& parts, const CollateWhere& where) {
  if constexpr (std::same_as<T, at::Tensor>) {
    return collate_tensors(parts, where);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return stack_numbers(parts);
  } else if constexpr (std::convertible_to<const T&, std::string_view>) {
    std::vector<std::string> texts;
    for (const T* text : parts) texts.emplace_back(std::string_view(*text));
    return texts;
  } else if constexpr (tree::detail::Struct<T>) {
    using Members = decltype(tree::detail::members(std::declval<T&>()));
    return collate_struct(parts, where, std::make_index_sequence<std::tuple_size_v<Members>>());
  } else if constexpr (tree::detail::Tuple<T>) {
    return collate_tuple(parts, where, std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (tree::detail::Map<T>) {
    return collate_map(parts, where);
  } else if constexpr (NumberList<T>) {
    std::vector<at::Tensor> rows;
    for (const T* list : parts) rows.push_back(row_of_numbers(*list));
    Parts<at::Tensor> pointers;
    for (const at::Tensor& row : rows) pointers.push_back(&row);
    return collate_tensors(pointers, where);
  } else if constexpr (tree::detail::Sequence<T>) {
    return collate_items(parts, where);
  } else if constexpr (tree::detail::IsOptional<T>::value) {
    return collate_optional(parts, where);
  } else {
    static_assert(sizeof(T) == 0,
                  "accelerate::data: this type of sample cannot be collated; tensors, numbers, strings, and pairs, "
                  "tuples, vectors, maps, optionals and structs (with tree_members) of them can, and a collate "
                  "function of your own takes any");
  }
}

template <typename Sample>
auto collate_samples(const std::vector<Sample>& samples, std::span<const int64_t> numbers, const Padding& padding) {
  static const LeafPath whole{};
  check_some(samples.size());
  if constexpr (std::same_as<Sample, bool>) {  // std::vector<bool> does not contain bools
    return row_of_numbers(samples);
  } else {
    Parts<Sample> parts;
    for (const Sample& sample : samples) parts.push_back(&sample);
    return collate_parts(parts, {.numbers = numbers, .path = whole, .padding = padding});
  }
}

}  // namespace detail

/// Makes a batch as torch.utils.data.default_collate does.
///
/// \param samples  At least one. Tensors of one shape are stacked, [B, ...]; numbers become [B] int64, float32 (float),
///                 float64 (double) or bool; strings a vector; pairs, tuples, maps and structs (with tree_members) are
///                 collated member by member, vectors item by item; vectors of numbers are stacked like NumPy arrays,
///                 [B, n].
/// \param numbers  Numbers of the samples in their source, for errors. If empty, 0, 1, ...
/// \returns the same structure of batches; a struct with members other than tensors becomes a std::tuple, because it
///          cannot hold their batches.
/// \throws Error (data) for samples that do not match, with their numbers and both shapes or lengths.
template <typename Sample>
[[nodiscard]] auto default_collate(const std::vector<Sample>& samples, std::span<const int64_t> numbers = {}) {
  return detail::collate_samples(samples, numbers, {});
}

/// default_collate as a value.
struct DefaultCollate {
  template <typename Sample>
  [[nodiscard]] auto operator()(const std::vector<Sample>& samples, std::span<const int64_t> numbers = {}) const {
    return data::default_collate(samples, numbers);
  }
};

/// See pad_collate.
struct PadCollate {
  at::Scalar value = 0;

  template <typename Sample>
  [[nodiscard]] auto operator()(const std::vector<Sample>& samples, std::span<const int64_t> numbers = {}) const {
    return detail::collate_samples(samples, numbers, {.value = value});
  }
};

/// A batch and a mask of its unpadded positions.
template <typename AnyBatch>
struct Padded {
  AnyBatch batch;
  at::Tensor mask;  ///< [B, longest] bool, false in the padding of the first padded leaf

  /// Makes a Padded a tree for accelerate::tree.
  auto tree_members() { return std::tie(batch, mask); }
};

/// See pad_collate_with_mask.
struct PadCollateWithMask {
  at::Scalar value = 0;

  template <typename Sample>
  [[nodiscard]] auto operator()(const std::vector<Sample>& samples, std::span<const int64_t> numbers = {}) const {
    std::vector<int64_t> lengths;
    auto batch = detail::collate_samples(samples, numbers, {.value = value, .lengths = &lengths});
    return Padded<decltype(batch)>{std::move(batch), detail::mask_of(lengths)};
  }
};

/// As default_collate, but tensors with different first dimensions, and vectors of numbers, are padded to the longest
/// of the batch with `value` at the end.
[[nodiscard]] inline PadCollate pad_collate(const at::Scalar& value = 0) { return {value}; }
/// As pad_collate; batches are Padded, with a mask from the first leaf with a first dimension.
/// \throws Error (usage) if no leaf has one.
[[nodiscard]] inline PadCollateWithMask pad_collate_with_mask(const at::Scalar& value = 0) { return {value}; }

}  // namespace accelerate::data

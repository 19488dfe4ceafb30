// SPDX-License-Identifier: Apache-2.0
// Collates the leaves: the tensors or numbers of all samples become one tensor.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "accelerate/data/leaf_path.hpp"
#include "accelerate/tree/walk.hpp"

namespace accelerate::data::detail {

struct Padding {
  /// Padding of shorter samples. If unset, all samples must have equal length.
  std::optional<at::Scalar> value{};
  /// Receives the lengths of the samples, from the first leaf that has a first dimension.
  std::vector<int64_t>* lengths = nullptr;
};

/// Samples and leaf that are collated.
struct CollateWhere {
  std::span<const int64_t> numbers;  // if empty, 0, 1, ...
  const LeafPath& path;
  const Padding& padding;

  /// \param deeper  Must outlive the result.
  [[nodiscard]] CollateWhere in(const LeafPath& deeper) const { return {numbers, deeper, padding}; }
  [[nodiscard]] int64_t number(size_t sample) const {
    return numbers.empty() ? static_cast<int64_t>(sample) : numbers[sample];
  }
};

/// \returns [B, ...]; undefined if all tensors are.
at::Tensor collate_tensors(const std::vector<const at::Tensor*>& tensors, const CollateWhere& where);
/// \returns [B, longest] bool
at::Tensor mask_of(const std::vector<int64_t>& lengths);

// The errors contain the number of the sample and of the first one.
[[noreturn]] void fail_key(const CollateWhere& where, const LeafPath& key, size_t sample);
[[noreturn]] void fail_length(const CollateWhere& where, std::string_view what, size_t sample, size_t length,
                              size_t first);
[[noreturn]] void throw_missing_key(const CollateWhere& where, size_t sample, bool has);
void check_some(size_t samples);

template <typename Number>
constexpr at::ScalarType dtype_of_number() {
  if constexpr (std::same_as<Number, bool>) return at::kBool;
  if constexpr (std::integral<Number>) return at::kLong;
  return std::same_as<Number, float> ? at::kFloat : at::kDouble;
}
/// The dtype of NumPy's arrays. Unsigned types with few operations in LibTorch become int64.
template <typename Number>
constexpr at::ScalarType dtype_of_item() {
  if constexpr (!std::integral<Number> || std::same_as<Number, bool>) return dtype_of_number<Number>();
  if constexpr (std::unsigned_integral<Number>) return sizeof(Number) == 1 ? at::kByte : at::kLong;
  return sizeof(Number) == 1   ? at::kChar
         : sizeof(Number) == 2 ? at::kShort
         : sizeof(Number) == 4 ? at::kInt
                               : at::kLong;
}

/// \returns [count], uninitialised.
at::Tensor empty_row(int64_t count, at::ScalarType dtype);

/// Calls fn with a pointer to the items of the row.
template <typename Fn>
void with_items(at::Tensor& row, Fn&& fn) {
  switch (row.scalar_type()) {
    case at::kBool:
      return fn(row.mutable_data_ptr<bool>());
    case at::kByte:
      return fn(row.mutable_data_ptr<uint8_t>());
    case at::kChar:
      return fn(row.mutable_data_ptr<int8_t>());
    case at::kShort:
      return fn(row.mutable_data_ptr<int16_t>());
    case at::kInt:
      return fn(row.mutable_data_ptr<int32_t>());
    case at::kLong:
      return fn(row.mutable_data_ptr<int64_t>());
    case at::kFloat:
      return fn(row.mutable_data_ptr<float>());
    default:
      return fn(row.mutable_data_ptr<double>());
  }
}

template <typename Number>
at::Tensor stack_numbers(const std::vector<const Number*>& numbers) {
  at::Tensor row = empty_row(static_cast<int64_t>(numbers.size()), dtype_of_number<Number>());
  with_items(row, [&](auto* to) {
    for (const Number* number : numbers) *to++ = static_cast<std::remove_pointer_t<decltype(to)>>(*number);
  });
  return row;
}

/// True for a list of numbers, which becomes one tensor.
template <typename T>
concept NumberList = tree::detail::Sequence<T> && std::is_arithmetic_v<typename T::value_type>;

template <NumberList List>
at::Tensor row_of_numbers(const List& list) {
  at::Tensor row = empty_row(static_cast<int64_t>(list.size()), dtype_of_item<typename List::value_type>());
  with_items(row, [&](auto* to) {
    for (const auto number : list) *to++ = static_cast<std::remove_pointer_t<decltype(to)>>(number);
  });
  return row;
}

}  // namespace accelerate::data::detail

// SPDX-License-Identifier: Apache-2.0
// Splits one input among processes: split_between_processes.
#pragma once

#include <cstdint>
#include <string_view>

#include "accelerate/tree/tree.hpp"

namespace accelerate::tree {

/// Items first to first+count-1, then `filling` copies of the whole input's last item.
struct Part {
  int64_t first = 0;
  int64_t count = 0;
  int64_t filling = 0;

  bool operator==(const Part&) const = default;
};

/// One rank's part of `items`: contiguous; the first `items mod world_size` ranks have one more.
///
/// \param apply_padding  If true, every rank gets ceil(items / world_size).
/// \throws Error (usage) for negative items, a world_size below 1, or a rank outside the world.
[[nodiscard]] Part split_part(int64_t items, int64_t rank, int64_t world_size, bool apply_padding = false);

namespace detail {

at::Tensor take(const at::Tensor& rows, const Part& part);
/// \throws Error (usage) if two lengths differ.
void check_lengths(int64_t first, int64_t other);

template <typename T>
concept Items = Sequence<T> && !std::convertible_to<const T&, std::string_view> &&
                requires(T & value, typename T::value_type item) {
  value.push_back(item);
};

/// Calls fn(length) for every part of value that is split: tensors by row, lists by item.
template <typename T, typename Fn>
void for_each_length(T& value, Fn&& fn) {
  if constexpr (Tensor<T>) {
    fn(value.dim() == 0 ? 1 : value.size(0));
  } else if constexpr (Items<T>) {
    fn(static_cast<int64_t>(value.size()));
  } else if constexpr (Struct<T>) {
    std::apply([&](auto&... member) { (for_each_length(member, fn), ...); }, members(value));
  } else if constexpr (Tuple<T>) {
    std::apply([&](auto&... member) { (for_each_length(member, fn), ...); }, value);
  } else if constexpr (Map<T>) {
    for (auto& [key, member] : value) for_each_length(member, fn);
  }
}

template <typename T>
void cut(T& value, const Part& part) {
  if constexpr (Tensor<T>) {
    value = detail::take(value, part);
  } else if constexpr (Items<T>) {
    T mine(value.begin() + part.first, value.begin() + part.first + part.count);
    for (int64_t i = 0; i < part.filling; ++i) mine.push_back(value.back());
    value = std::move(mine);
  } else if constexpr (Struct<T>) {
    std::apply([&](auto&... member) { (cut(member, part), ...); }, members(value));
  } else if constexpr (Tuple<T>) {
    std::apply([&](auto&... member) { (cut(member, part), ...); }, value);
  } else if constexpr (Map<T>) {
    for (auto& [key, member] : value) cut(member, part);
  }
}

}  // namespace detail

/// Returns this rank's part of the inputs, which are unchanged.
///
/// \param inputs  A tensor (split by rows), a vector or deque (by items), or a map, pair, tuple or struct of these,
///                with equal lengths; other values, including strings, are returned unchanged.
/// \returns the same structure; tensors are views unless they are padded.
/// \throws Error (usage) if lengths differ (with one process the inputs are returned).
template <typename T>
[[nodiscard]] T split_between_processes(const T& inputs, int64_t rank, int64_t world_size, bool apply_padding = false) {
  if (world_size == 1 && rank == 0) return inputs;
  int64_t items = -1;
  detail::for_each_length(const_cast<T&>(inputs), [&](int64_t length) {
    if (items >= 0) detail::check_lengths(items, length);
    items = length;
  });
  const Part part = split_part(items < 0 ? 0 : items, rank, world_size, apply_padding);
  T mine = inputs;
  if (items >= 0) detail::cut(mine, part);
  return mine;
}

}  // namespace accelerate::tree

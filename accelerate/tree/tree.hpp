// SPDX-License-Identifier: Apache-2.0
// Batches of any structure: visits, maps, joins and cuts their tensors and keeps the structure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/tree/walk.hpp"

namespace accelerate::tree {

namespace detail {

std::vector<at::Tensor> concat(const std::vector<std::vector<at::Tensor>>& values, int64_t dim);
at::Tensor slice_rows(const at::Tensor& tensor, int64_t first, int64_t count);
void fail_rebuild(size_t tensors, size_t expected);

template <typename T>
constexpr void must_hold_tensors() {
  static_assert(holds_tensors<T>,
                "accelerate::tree: this type holds no tensor; a struct takes part through a function "
                "tree_members(T&) that returns std::tie of its members");
}

template <typename T>
constexpr void must_own_tensors() {
  static_assert(
      !holds_references<T>,
      "accelerate::tree: a tuple of references (std::tie, forward_as_tuple) cannot be copied: the result would "
      "write into the caller's tensors; give std::make_tuple or std::tuple of values");
}

}  // namespace detail

/// Calls fn(const at::Tensor&) for every defined tensor in value: members in order, maps by key.
template <typename T, typename Fn>
void for_each_tensor(const T& value, Fn&& fn) {
  detail::must_hold_tensors<T>();
  // The customization point takes T&, but fn receives const tensors.
  walk(const_cast<T&>(value), [&fn](const at::Tensor& tensor) { fn(tensor); });
}

/// \returns `value` with every defined tensor t replaced by fn(t); numbers, strings and similar are copied.
template <typename T, typename Fn>
[[nodiscard]] T map(const T& value, Fn&& fn) {
  detail::must_hold_tensors<T>();
  detail::must_own_tensors<T>();
  T out = value;
  walk(out, [&fn](at::Tensor& tensor) { tensor = fn(std::as_const(tensor)); });
  return out;
}

// Calls inside are qualified, because ADL finds at::flatten and at::concat for a plain tensor.

/// The tensors in value, in the order of for_each_tensor.
template <typename T>
[[nodiscard]] std::vector<at::Tensor> flatten(const T& value) {
  std::vector<at::Tensor> tensors;
  tree::for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

/// \returns `like` with its tensors replaced by `tensors`, in the order of flatten().
/// \throws Error (usage) if the numbers of tensors differ.
template <typename T>
[[nodiscard]] T rebuild(const T& like, std::span<const at::Tensor> tensors) {
  size_t expected = 0;
  tree::for_each_tensor(like, [&](const at::Tensor&) { ++expected; });
  if (tensors.size() != expected) detail::fail_rebuild(tensors.size(), expected);
  size_t next = 0;
  return tree::map(like, [&](const at::Tensor&) { return tensors[next++]; });
}

/// Joins values of one structure tensor by tensor.
///
/// \param values  At least one, with the same tensors, each [n_i, ...]; 0-dim counts as [1].
/// \returns the first value's structure with tensors [n_0 + n_1 + ..., ...]; non-tensors are the first value's. A
///          single value is returned unchanged.
/// \throws Error (usage) without values, for different structures, and for shapes that differ outside `dim`.
template <typename T>
[[nodiscard]] T concat(const std::vector<T>& values, int64_t dim = 0) {
  if (values.size() == 1) return values.front();
  std::vector<std::vector<at::Tensor>> tensors;
  for (const T& value : values) tensors.push_back(tree::flatten(value));
  const auto joined = detail::concat(tensors, dim);
  return tree::rebuild(values.front(), joined);
}

/// \returns rows first to first+count-1 of every tensor as views; fewer if a tensor ends; 0-dim unchanged.
/// \throws Error (usage) for a negative first or count.
template <typename T>
[[nodiscard]] T slice_rows(const T& value, int64_t first, int64_t count) {
  return tree::map(value, [&](const at::Tensor& tensor) { return detail::slice_rows(tensor, first, count); });
}

/// First dimension of the first tensor that has one, or nothing if no tensor has rows.
template <typename T>
[[nodiscard]] std::optional<int64_t> batch_size(const T& value) {
  std::optional<int64_t> rows;
  tree::for_each_tensor(value, [&](const at::Tensor& tensor) {
    if (!rows && tensor.dim() > 0) rows = tensor.size(0);
  });
  return rows;
}

/// Device of the first tensor, or nothing without tensors.
template <typename T>
[[nodiscard]] std::optional<at::Device> device(const T& value) {
  std::optional<at::Device> first;
  tree::for_each_tensor(value, [&](const at::Tensor& tensor) {
    if (!first) first = tensor.device();
  });
  return first;
}

/// Returns `value` with its tensors on `device`; tensors that are already there are not copied.
/// \param non_blocking  If true, a copy of a pinned tensor returns at once and is ready when the current stream reaches
///                      it.
template <typename T>
[[nodiscard]] T to(const T& value, at::Device device, bool non_blocking = false) {
  return tree::map(value,
                   [&](const at::Tensor& tensor) { return tensor.to(device, tensor.scalar_type(), non_blocking); });
}

}  // namespace accelerate::tree

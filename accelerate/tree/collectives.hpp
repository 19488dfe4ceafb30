// SPDX-License-Identifier: Apache-2.0
// Collectives over whole batches. Every rank calls them with the same structure.
#pragma once

#include <ATen/core/Scalar.h>

#include <string_view>

#include "accelerate/comm/group.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate::tree {

struct PadOptions {
  /// Dimension to pad; negative values count from the end.
  int64_t dim = 0;
  /// Value of the padding, converted to the tensor's dtype (bool: true if it is not 0).
  at::Scalar pad_index = 0;
  /// If true, padding is inserted before the existing elements.
  bool pad_first = false;
};

namespace detail {

using Tensors = std::vector<at::Tensor>;
Tensors gather(const Tensors& tensors, const comm::Group& group, std::string_view call);
Tensors reduce(const Tensors& tensors, const comm::Group& group, comm::ReduceOp op, double scale);
void broadcast(const Tensors& tensors, const comm::Group& group, int64_t root);
Tensors pad_across_processes(const Tensors& tensors, const comm::Group& group, const PadOptions& options);
at::Tensor pad_rows(const at::Tensor& tensor, int64_t multiple);

template <typename T>
constexpr void must_be_tensors() {
  static_assert(only_tensors<T>,
                "accelerate::tree: a collective takes tensors, and pairs, tuples, vectors, maps and structs (with "
                "tree_members) of tensors only; use gather_object and broadcast_object for other objects");
}

}  // namespace detail

/// Joins every rank's tensors along the first dimension, in rank order, on every rank.
///
/// \param value  Tensors [n_r, ...] of rank r; first dimensions may differ, 0-dim counts as [1].
/// \param call   Name of the calling function for errors.
/// \returns the same structure with tensors [n_0 + ... + n_{P-1}, ...], without gradient history, in its own memory.
/// \throws as comm::Group::all_gather does.
template <typename T>
[[nodiscard]] T gather(const T& value, const comm::Group& group, std::string_view call = "gather") {
  detail::must_be_tensors<T>();
  return tree::rebuild(value, detail::gather(tree::flatten(value), group, call));
}

/// Reduces every tensor over all ranks; the input is unchanged.
///
/// \param scale  Factor of the result.
/// \returns the same structure and shapes, without gradient history, in its own memory.
template <typename T>
[[nodiscard]] T reduce(const T& value, const comm::Group& group, comm::ReduceOp op = comm::ReduceOp::sum,
                       double scale = 1.0) {
  detail::must_be_tensors<T>();
  return tree::rebuild(value, detail::reduce(tree::flatten(value), group, op, scale));
}

/// Sets every tensor in place to root's, which must have the same shapes and dtypes. Returns value, for chaining.
template <typename T>
T broadcast(const T& value, const comm::Group& group, int64_t root = 0) {
  detail::must_be_tensors<T>();
  detail::broadcast(tree::flatten(value), group, root);
  return value;
}

/// Pads one dimension of every tensor to the length of the longest rank's.
///
/// \returns the same structure and dtypes (bool stays bool), in its own memory. A tensor without that dimension, or
///          with sufficient length, is copied.
template <typename T>
[[nodiscard]] T pad_across_processes(const T& value, const comm::Group& group, const PadOptions& options = {}) {
  detail::must_be_tensors<T>();
  return tree::rebuild(value, detail::pad_across_processes(tree::flatten(value), group, options));
}

/// Appends rows of zeros to every tensor until its first dimension is a multiple of world_size, so that it can be split
/// evenly. Does not communicate.
///
/// \returns the same structure and dtypes; a tensor that needs no padding, or is 0-dim, is returned unchanged.
/// \throws Error (usage) for a world_size below 1.
template <typename T>
[[nodiscard]] T pad_input_tensors(const T& value, int64_t world_size) {
  detail::must_be_tensors<T>();
  return tree::map(value, [&](const at::Tensor& tensor) { return detail::pad_rows(tensor, world_size); });
}

/// Sends a tensor of one rank to all ranks, which need not know its shape or dtype.
///
/// \param tensor  Root's tensor; ignored on other ranks, may be undefined there.
/// \param device  Destination on the other ranks; the same device type on every rank, from which root sends.
/// \returns the tensor itself on root, a copy on other ranks.
/// \throws Error (usage) on every rank if root's tensor is undefined.
[[nodiscard]] at::Tensor copy_tensor_to_devices(const at::Tensor& tensor, const comm::Group& group, int64_t root = 0,
                                                at::Device device = at::kCPU);

}  // namespace accelerate::tree

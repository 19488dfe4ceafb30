// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::state {

/// What a rank steps on: a range of one named tensor. In plain data parallelism that is the whole tensor on every rank;
/// where ranks share a model out among them each has its range.
struct Piece {
  std::string name{};
  /// Of the whole tensor.
  std::vector<int64_t> sizes{};
  /// The elements that are this rank's, [begin, end) of the whole, flattened.
  int64_t begin = 0, end = 0;
  /// Under which torch::optim keeps its state: the parameter's TensorImpl.
  void* key = nullptr;
  /// What is updated: the parameter itself, or [end - begin] elements of it.
  at::Tensor value{};
  /// Same layout as `value`. If undefined, there is no gradient and the optimizer skips this shard.
  at::Tensor gradient{};
  /// Float32 master copy on which the optimizer steps; `value` is its rounded copy. Undefined if there is none.
  at::Tensor master{};
};

/// The whole of a parameter, with the gradient that it has now.
inline Piece whole_piece(std::string name, const at::Tensor& parameter) {
  return {.name = std::move(name),
          .sizes = parameter.sizes().vec(),
          .begin = 0,
          .end = parameter.numel(),
          .key = parameter.unsafeGetTensorImpl(),
          .value = parameter,
          .gradient = parameter.grad()};
}

}  // namespace accelerate::state

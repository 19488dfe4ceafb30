// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::state {

/// The part of a named tensor that an optimizer updates on this rank. In plain data parallelism it is the whole tensor
/// on every rank; with a sharded model each rank has a range of it.
struct ParameterShard {
  std::string name{};
  /// Shape of the whole tensor.
  std::vector<int64_t> sizes{};
  /// Range of this rank, [begin, end), in the flattened whole tensor.
  int64_t begin = 0, end = 0;
  /// Key of the optimizer state in torch::optim: the parameter's TensorImpl.
  void* key = nullptr;
  /// The tensor that is updated: the parameter itself, or a tensor of [end - begin] elements.
  at::Tensor value{};
  /// Same layout as `value`, and its dtype or that of `master`. If undefined, there is no gradient and the optimizer
  /// skips this shard.
  at::Tensor gradient{};
  /// Float32 master copy on which the optimizer steps; `value` is its rounded copy. Undefined if there is none.
  at::Tensor master{};
};

/// Returns a whole parameter as one shard, with its current gradient.
inline ParameterShard whole_parameter(std::string name, const at::Tensor& parameter) {
  return {.name = std::move(name),
          .sizes = parameter.sizes().vec(),
          .begin = 0,
          .end = parameter.numel(),
          .key = parameter.unsafeGetTensorImpl(),
          .value = parameter,
          .gradient = parameter.grad()};
}

}  // namespace accelerate::state

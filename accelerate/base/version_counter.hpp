// SPDX-License-Identifier: Apache-2.0
// The version counters by which autograd detects that a saved tensor changed. Templates, because this component does
// not include LibTorch.
#pragma once

#include <cstdint>

namespace accelerate::base {

/// \param tensor  An at::Tensor.
/// \returns The version counter; 0 for an undefined or an inference tensor, which have none. Thread-safe.
template <typename Tensor>
[[nodiscard]] int64_t version_of(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? static_cast<int64_t>(tensor._version()) : 0;
}

/// Counts one in-place change, so that the backward of a graph that saved the tensor throws. For writes that LibTorch
/// does not count: kernels called directly, collectives, replays of captured steps.
///
/// \param tensor  A defined at::Tensor. Nothing happens to an inference tensor.
template <typename Tensor>
void count_write(const Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace accelerate::base

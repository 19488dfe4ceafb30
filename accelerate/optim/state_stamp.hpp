// SPDX-License-Identifier: Apache-2.0
// Detects steps of a stock optimizer by its state.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>

namespace accelerate::optim {

/// Returns a number that differs after a step of LibTorch's own kernels on the parameter: a hash of the identities and
/// version counters of the tensors in the state. Allocates nothing, and reads no tensor values.
///
/// \returns 0 for a parameter without state, SGD without momentum, and types other than SGD, Adam, AdamW, RMSprop and
///   Adagrad.
[[nodiscard]] uint64_t state_stamp(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

}  // namespace accelerate::optim

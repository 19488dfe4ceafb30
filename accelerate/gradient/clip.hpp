// SPDX-License-Identifier: Apache-2.0
// Gradient clipping that never makes the host wait for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace accelerate::gradient {

/// The dense tensors that hold the gradients' numbers, of sparse ones the values after coalescing.
std::vector<at::Tensor> dense_gradients(const std::vector<at::Tensor>& parameters);

/// Their common norm.
///
/// gradients   one tensor each, or whole flat buckets (Engine::gradients())
/// norm_type   p of the p-norm, above 0; infinity for the largest absolute value
/// returns     0-dim on the device of the first gradient; 0 when there is none
at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double norm_type = 2.0);
/// Scales them so that their common norm is at most max_norm: by max_norm / (norm + 1e-6) where that is below one, as
/// in PyTorch. Returns the norm before.
at::Tensor clip_norm_of(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type = 2.0);
/// Clamps every element into [-value, value].
void clip_value_of(const std::vector<at::Tensor>& gradients, double value);

/// Multiplies every gradient of parameters by factor: a short last window where no engine does it.
void scale_gradients(const std::vector<at::Tensor>& parameters, double factor);

}  // namespace accelerate::gradient

// SPDX-License-Identifier: Apache-2.0
// Gradient clipping that never makes the host wait for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace accelerate::gradient {

/// Scales the gradients of parameters so that their common norm is at most max_norm; the scale is
/// max_norm / (norm + 1e-6) where that is below one, as in PyTorch.
///
/// parameters   those without a gradient are left out; sparse gradients are coalesced and count by their values
/// norm_type    p of the p-norm, above 0; infinity for the largest absolute value
/// returns      the norm before clipping, 0-dim on the device of the first gradient; 0 when there is no gradient
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0);

/// Clamps every gradient element of parameters into [-value, value].
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double value);

/// The dense tensors that hold the gradients' numbers, of sparse ones the values after coalescing.
std::vector<at::Tensor> dense_gradients(const std::vector<at::Tensor>& parameters);

/// The same on the gradients themselves: one tensor each, or whole flat buckets (Engine::gradients()).
at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double norm_type = 2.0);
at::Tensor clip_norm_of(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type = 2.0);
void clip_value_of(const std::vector<at::Tensor>& gradients, double value);

/// Multiplies every gradient of parameters by factor: a short last window where no engine does it.
void scale_gradients(const std::vector<at::Tensor>& parameters, double factor);

}  // namespace accelerate::gradient

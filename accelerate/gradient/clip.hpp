// SPDX-License-Identifier: Apache-2.0
// Gradient clipping that never makes the host wait for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/state/piece.hpp"

namespace accelerate::gradient {

/// The dense tensors that hold the gradients' numbers, of sparse ones the values after coalescing.
std::vector<at::Tensor> dense_gradients(const std::vector<at::Tensor>& parameters);
std::vector<at::Tensor> dense_gradients(std::span<state::Piece> pieces);

/// Returns the common norm.
///
/// \param gradients  One tensor each, or whole flat buckets (Engine::gradients()), of any dtypes and devices.
/// \param norm_type  p of the p-norm, above 0; infinity for the largest absolute value.
/// \param over       If set, each rank of the group has a part of the gradients: the norm is that of all parts, equal
/// on
///                   every rank, by one all-reduce of one number. All its ranks must call, even without gradients. If
///                   null, these are all gradients.
/// \returns 0-dim tensor on the device of the first gradient; 0 without gradients.
at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double norm_type = 2.0, const comm::Group* over = nullptr);
/// Scales them so that their common norm is at most max_norm: by max_norm / (norm + 1e-6) where that is below one, as
/// in PyTorch. Returns the norm before; an infinite max_norm only measures.
at::Tensor clip_norm_of(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type = 2.0,
                        const comm::Group* over = nullptr);
/// Clamps every element into [-value, value].
void clip_value_of(const std::vector<at::Tensor>& gradients, double value);

/// Checks the arguments of the two functions in advance. \throws Error (usage) for invalid limits.
void check_norm_limit(double max_norm, double norm_type);
void check_value_limit(double value);

/// Multiplies every gradient of parameters by factor: a short last window where no engine does it.
void scale_gradients(const std::vector<at::Tensor>& parameters, double factor);

/// Lists of one dtype and device each, as _foreach kernels want them.
std::vector<std::vector<at::Tensor>> by_kind(const std::vector<at::Tensor>& tensors);

}  // namespace accelerate::gradient

// SPDX-License-Identifier: Apache-2.0
// Gradient clipping without host waits.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/state/parameter_shard.hpp"

namespace accelerate::gradient {

/// Dense tensors of the gradients; for sparse gradients the values after coalescing.
std::vector<at::Tensor> dense_gradients(const std::vector<at::Tensor>& parameters);
std::vector<at::Tensor> dense_gradients(std::span<state::ParameterShard> parameter_shards);

/// Returns the common norm.
///
/// \param gradients  One tensor each, or whole flat buckets (GradientReducer::gradients()), of any dtypes and devices.
/// \param norm_type  p of the p-norm, above 0; infinity for the largest absolute value.
/// \param over       If set, each rank of the group has a part of the gradients. The result is the norm of all parts,
///                   equal on every rank, by one all-reduce of one number. All ranks of the group must call, even
///                   without gradients. If null, the gradients are complete.
/// \returns 0-dim tensor on the device of the first gradient; 0 without gradients.
at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double norm_type = 2.0, const comm::Group* over = nullptr);
/// Scales the gradients so that their common norm is at most max_norm, as PyTorch does: by max_norm / (norm + 1e-6) if
/// that is below 1. Returns the norm before scaling; an infinite max_norm only measures.
at::Tensor clip_norm_of(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type = 2.0,
                        const comm::Group* over = nullptr);
/// Scales gradients of a known common norm as clip_norm_of() does.
///
/// \param groups  Result of by_kind().
void scale_to_norm(const std::vector<std::vector<at::Tensor>>& groups, const at::Tensor& norm, double max_norm);
/// Clamps every element to [-value, value].
void clip_value_of(const std::vector<at::Tensor>& gradients, double value);

/// Checks the arguments of the two functions in advance. \throws Error (usage) for invalid limits.
void check_norm_limit(double max_norm, double norm_type);
void check_value_limit(double value);

/// Multiplies every gradient of parameters by factor, for a short last window without a reducer.
void scale_gradients(const std::vector<at::Tensor>& parameters, double factor);

/// Groups the tensors by dtype and device, as _foreach kernels require.
std::vector<std::vector<at::Tensor>> by_kind(const std::vector<at::Tensor>& tensors);

}  // namespace accelerate::gradient

// SPDX-License-Identifier: Apache-2.0
// Detects inf and NaN in gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "accelerate/base/error.hpp"
#include "accelerate/state/parameter_shard.hpp"

namespace accelerate::gradient {

/// \param norm           Result of norm_of(). Waits for the device.
/// \param is_over_ranks  True if the norm contains gradients of other ranks.
/// \throws Error (data) if the norm of the shards' gradients is inf or NaN. The error names the first parameter with
///         such an element and the number of such parameters.
void require_finite(const at::Tensor& norm, std::span<state::ParameterShard> parameter_shards, const RankContext& place,
                    bool is_over_ranks = false);

}  // namespace accelerate::gradient

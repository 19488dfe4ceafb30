// SPDX-License-Identifier: Apache-2.0
// Clipping of gradients by their norm over all stages. Private.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::pipeline {

class TiedParameters;

struct ClipScope {
  std::optional<comm::Group> group{};    ///< unset if all stages are in this process
  const TiedParameters* tied = nullptr;  ///< null if no parameter is tied
  at::Device device = at::kCPU;          ///< of the norm
};

/// Scales the gradients of the parameters. Collective over the group.
/// \returns the norm before, a float64 number.
/// \throws Error (usage) if max_norm is negative or norm_type is not positive.
at::Tensor clip_gradients(const std::vector<at::Tensor>& parameters, const ClipScope& scope, double max_norm,
                          double norm_type);

}  // namespace accelerate::pipeline

// SPDX-License-Identifier: Apache-2.0
// Parameter groups of an optimizer: all parameters as a list, and checks that torch::optim does not make.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <unordered_set>
#include <vector>

#include "accelerate/base/error.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// The parameters of every group, in order.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Identities of the tensors for lookup (as state::ParameterShard::key).
std::unordered_set<const void*> keys_of(const std::vector<at::Tensor>& tensors);

/// \param operation  Name of the operation for the message.
/// \throws Error (usage) if a parameter is listed twice, in one or two groups, because it would be stepped on twice.
void check_groups(const torch::optim::Optimizer& optimizer, const RankContext& place, std::string_view operation);

}  // namespace accelerate::optim

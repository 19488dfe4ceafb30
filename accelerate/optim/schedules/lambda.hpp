// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's LambdaLR: multiplies each group's rate by a function of the number of optimizer steps. There is one
/// function for all groups, or one for each. The state does not contain the functions.
struct LambdaLR : Scheduler {
  LambdaLR(torch::optim::Optimizer& optimizer, Factor lr_lambda);
  /// \throws Error (usage) unless there is one function per group.
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Factor> lr_lambdas);
};

/// A rule with one factor for all groups. For last_step see Rule.
/// \throws Error (usage) for an empty function.
Rule factor_rule(std::string name, Scheduler::Factor factor, std::optional<int64_t> last_step = std::nullopt);

}  // namespace accelerate::optim

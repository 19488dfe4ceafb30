// SPDX-License-Identifier: Apache-2.0
// Private: access to rates in an optimizer's parameter groups.
#pragma once

#include <string_view>
#include <vector>

#include "accelerate/state/scheduler_state.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// The learning rate of each parameter group.
std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);
/// \param rates  One per group.
void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);

/// \throws Error (usage) unless a schedule of that name and optimizer wrote the state; Error (data) if the state is
///         inconsistent.
void check_scheduler_state(const state::SchedulerState& state, std::string_view name,
                           const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::optim

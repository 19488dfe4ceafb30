// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's MultiStepLR: multiplies the rate by gamma at each milestone, in any order; a duplicate counts twice.
/// \throws Error (usage) without milestones, for a negative one and for a gamma below 0.
struct MultiStepLR : Scheduler {
  MultiStepLR(torch::optim::Optimizer& optimizer, std::vector<int64_t> milestones, double gamma = 0.1);
};

}  // namespace accelerate::optim

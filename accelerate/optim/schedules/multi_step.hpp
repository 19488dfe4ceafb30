// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// The rate times gamma at each of the milestones, in any order; one that appears twice counts twice. PyTorch's
/// MultiStepLR. Throws Error (usage) without milestones, for one below 0 and for a gamma below 0.
struct MultiStepLR : Scheduler {
  MultiStepLR(torch::optim::Optimizer& optimizer, std::vector<int64_t> milestones, double gamma = 0.1);
};

}  // namespace accelerate::optim

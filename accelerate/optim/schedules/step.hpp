// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's StepLR: multiplies the rate by gamma every step_size steps.
/// \throws Error (usage) if step_size is below 1 or gamma is below 0.
struct StepLR : Scheduler {
  StepLR(torch::optim::Optimizer& optimizer, int64_t step_size, double gamma = 0.1);
};

}  // namespace accelerate::optim

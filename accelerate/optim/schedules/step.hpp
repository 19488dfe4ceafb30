// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// The rate times gamma every step_size steps; PyTorch's StepLR.
/// Throws Error (usage) for a step_size below 1 and a gamma below 0.
struct StepLR : Scheduler {
  StepLR(torch::optim::Optimizer& optimizer, int64_t step_size, double gamma = 0.1);
};

}  // namespace accelerate::optim

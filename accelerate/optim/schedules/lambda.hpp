// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// factor   of the number of steps, for every group alike
struct LambdaLR : Scheduler {
  LambdaLR(torch::optim::Optimizer& optimizer, Factor factor) : Scheduler(optimizer, std::move(factor)) {}
};

}  // namespace accelerate::optim

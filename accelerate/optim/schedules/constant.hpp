// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// The rate times factor for the first total_iters steps, then the rate itself; defaults as in PyTorch's ConstantLR.
struct ConstantLR : Scheduler {
  explicit ConstantLR(torch::optim::Optimizer& optimizer, double factor = 1.0 / 3.0, int64_t total_iters = 5)
      : Scheduler(optimizer, [=](int64_t steps) { return steps < total_iters ? factor : 1.0; }) {}
};

}  // namespace accelerate::optim

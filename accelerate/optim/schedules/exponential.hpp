// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's ExponentialLR: multiplies the rate by gamma at every step. \throws Error (usage) for a gamma below 0.
struct ExponentialLR : Scheduler {
  ExponentialLR(torch::optim::Optimizer& optimizer, double gamma);
};

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's PolynomialLR and defaults: multiplies the rate by (1 - step / total_iters) ^ power; 0 from total_iters on.
/// \throws Error (usage) for total_iters below 1.
struct PolynomialLR : Scheduler {
  explicit PolynomialLR(torch::optim::Optimizer& optimizer, int64_t total_iters = 5, double power = 1.0);
};

}  // namespace accelerate::optim

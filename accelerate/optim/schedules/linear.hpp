// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's LinearLR and defaults: multiplies the rate by a factor that changes from start_factor to end_factor in
/// total_iters steps and then stays constant.
/// \throws Error (usage) for factors outside (0, 1] and [0, 1] and total_iters below 1.
struct LinearLR : Scheduler {
  explicit LinearLR(torch::optim::Optimizer& optimizer, double start_factor = 1.0 / 3.0, double end_factor = 1.0,
                    int64_t total_iters = 5);
};

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// Half a cosine wave from the rate to eta_min in T_max steps; after that the wave goes on, up again, as PyTorch's
/// CosineAnnealingLR does: its last step is the T_max-th, and prepared it goes on too. One that ends is
/// get_cosine_schedule_with_warmup. Throws Error (usage) for a T_max below 1.
struct CosineAnnealingLR : Scheduler {
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, int64_t T_max, double eta_min = 0.0);
};

}  // namespace accelerate::optim

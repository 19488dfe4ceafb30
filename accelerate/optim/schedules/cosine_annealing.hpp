// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's CosineAnnealingLR: half a cosine wave from the rate to eta_min in T_max steps. Afterwards the rate rises
/// again, also for a prepared schedule; get_cosine_schedule_with_warmup ends instead.
/// \throws Error (usage) for a T_max below 1.
struct CosineAnnealingLR : Scheduler {
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, int64_t T_max, double eta_min = 0.0);
};

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's CosineAnnealingWarmRestarts: half a cosine wave from the rate to eta_min, restarted after T_0 steps, then
/// after T_0 * T_mult more, and so on.
/// \throws Error (usage) for a T_0 or T_mult below 1.
struct CosineAnnealingWarmRestarts : Scheduler {
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer, int64_t T_0, int64_t T_mult = 1,
                              double eta_min = 0.0);
};

}  // namespace accelerate::optim

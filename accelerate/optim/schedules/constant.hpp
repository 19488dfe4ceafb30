// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// The rate times factor for the first total_iters steps, then the rate itself. PyTorch's ConstantLR and defaults; a
/// factor of 0 is taken, for which PyTorch's divides by zero.
struct ConstantLR : Scheduler {
  explicit ConstantLR(torch::optim::Optimizer& optimizer, double factor = 1.0 / 3.0, int64_t total_iters = 5);
};

/// The optimizer's rate, unchanged; transformers' get_constant_schedule.
[[nodiscard]] Scheduler get_constant_schedule(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's ConstantLR and its defaults: the rate times factor for the first total_iters steps, then the rate itself.
/// Accepts a factor of 0, with which PyTorch divides by zero.
struct ConstantLR : Scheduler {
  explicit ConstantLR(torch::optim::Optimizer& optimizer, double factor = 1.0 / 3.0, int64_t total_iters = 5);
};

/// transformers' get_constant_schedule: the unchanged rate of the optimizer.
[[nodiscard]] Scheduler get_constant_schedule(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::optim

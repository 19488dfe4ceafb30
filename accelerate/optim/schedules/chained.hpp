// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's ChainedScheduler: several schedules at once. Each modifies the rates of the previous one.
///
///   ChainedScheduler({ConstantLR(sgd, 0.1, 20), ExponentialLR(sgd, 0.9)});
///
/// Copies the schedules; their own step() must not be called afterwards. Create them one after another on a fresh
/// optimizer: all start from the rates before the first one. A schedule may be a SequentialLR or ChainedScheduler.
/// \throws Error (usage) without schedules, and for schedules of different optimizers.
struct ChainedScheduler : Scheduler {
  explicit ChainedScheduler(const std::vector<Scheduler>& schedules);
  ChainedScheduler(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules);
};

}  // namespace accelerate::optim

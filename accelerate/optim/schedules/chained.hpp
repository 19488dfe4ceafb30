// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// Several schedules at once: each changes the rates that the one before it left. PyTorch's ChainedScheduler:
///
///   ChainedScheduler({ConstantLR(sgd, 0.1, 20), ExponentialLR(sgd, 0.9)});
///
/// Copies the schedules, whose own step() is not called any more. Make them one after another on a fresh optimizer: all
/// begin from the rates it had before the first. A schedule may itself be a SequentialLR or ChainedScheduler.
/// Throws Error (usage) without schedules, and for schedules of different optimizers.
struct ChainedScheduler : Scheduler {
  explicit ChainedScheduler(const std::vector<Scheduler>& schedules);
  ChainedScheduler(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules);
};

}  // namespace accelerate::optim

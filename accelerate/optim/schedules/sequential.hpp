// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// One schedule after another; from milestones[i] steps on schedules[i + 1], which begins there with step 0. PyTorch's
/// SequentialLR:
///
///   SequentialLR(sgd, {LinearLR(sgd, 0.1, 1.0, 100), CosineAnnealingLR(sgd, 900)}, {100});
///
/// Copies the schedules, whose own step() is not called any more. Make them one after another on a fresh optimizer: all
/// begin from the rates it had before the first. A schedule may itself be a SequentialLR or ChainedScheduler.
/// Throws Error (usage) for schedules of different optimizers, and milestones that are not one fewer or do not rise.
struct SequentialLR : Scheduler {
  SequentialLR(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules,
               std::vector<int64_t> milestones);
};

}  // namespace accelerate::optim

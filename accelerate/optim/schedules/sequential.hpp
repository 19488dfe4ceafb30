// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// PyTorch's SequentialLR: several schedules in sequence. schedules[i + 1] is active from milestones[i] steps on and
/// begins there with step 0.
///
///   SequentialLR(sgd, {LinearLR(sgd, 0.1, 1.0, 100), CosineAnnealingLR(sgd, 900)}, {100});
///
/// Copies the schedules; their own step() must not be called afterwards. Create them one after another on a fresh
/// optimizer: all start from the rates before the first one. A schedule may be a SequentialLR or ChainedScheduler.
/// \throws Error (usage) if the schedules have different optimizers, the number of milestones is not one less than the
///         number of schedules, or the milestones do not increase.
struct SequentialLR : Scheduler {
  SequentialLR(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules,
               std::vector<int64_t> milestones);
};

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// transformers' get_cosine_with_hard_restarts_schedule_with_warmup: from 0 to the optimizer's rate in
/// num_warmup_steps, then num_cycles half cosine waves down to 0. The schedule ends after num_training_steps optimizer
/// steps.
/// \throws Error (usage) for a schedule shorter than its warm-up and for num_cycles below 1.
[[nodiscard]] Scheduler get_cosine_with_hard_restarts_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                                           int64_t num_warmup_steps,
                                                                           int64_t num_training_steps,
                                                                           int64_t num_cycles = 1);

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// transformers' get_linear_schedule_with_warmup: from 0 to the optimizer's rate in num_warmup_steps, then linearly to
/// 0 after num_training_steps optimizer steps.
/// \throws Error (usage) for a schedule shorter than its warm-up.
[[nodiscard]] Scheduler get_linear_schedule_with_warmup(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                                        int64_t num_training_steps);

}  // namespace accelerate::optim

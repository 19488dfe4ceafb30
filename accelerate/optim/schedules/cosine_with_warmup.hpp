// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// transformers' get_cosine_schedule_with_warmup: from 0 to the optimizer's rate in num_warmup_steps, then along
/// num_cycles cosine waves (0.5: down to 0). The schedule ends after num_training_steps optimizer steps.
/// \throws Error (usage) for a schedule shorter than its warm-up.
[[nodiscard]] Scheduler get_cosine_schedule_with_warmup(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                                        int64_t num_training_steps, double num_cycles = 0.5);

}  // namespace accelerate::optim

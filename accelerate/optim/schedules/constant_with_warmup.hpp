// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// transformers' get_constant_schedule_with_warmup: from 0 to the optimizer's rate in num_warmup_steps, then constant.
/// \throws Error (usage) for a negative num_warmup_steps.
[[nodiscard]] Scheduler get_constant_schedule_with_warmup(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps);

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// transformers' get_inverse_sqrt_schedule: from 0 to the optimizer's rate in num_warmup_steps, then decreasing as the
/// inverse square root of the steps. If timescale is unset, num_warmup_steps is used, or 10000 without warm-up.
/// \throws Error (usage) for a negative num_warmup_steps and a timescale below 1.
[[nodiscard]] Scheduler get_inverse_sqrt_schedule(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                                  std::optional<int64_t> timescale = std::nullopt);

}  // namespace accelerate::optim

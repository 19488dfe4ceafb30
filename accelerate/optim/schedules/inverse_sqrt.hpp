// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// From 0 to the optimizer's rate in num_warmup_steps, then falling as the inverse square root of the steps, for ever;
/// transformers' get_inverse_sqrt_schedule. timescale: unset, num_warmup_steps, or 10000 without warm-up.
/// Throws Error (usage) for a negative num_warmup_steps and a timescale below 1.
[[nodiscard]] Scheduler get_inverse_sqrt_schedule(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                                  std::optional<int64_t> timescale = std::nullopt);

}  // namespace accelerate::optim

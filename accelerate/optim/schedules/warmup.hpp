// SPDX-License-Identifier: Apache-2.0
// Private: what transformers' schedules (transformers/optimization.py) have in common.
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate::optim {

/// Throws Error (usage) unless both are counts of steps and the whole is at least as long as its warm-up.
void check_warmup(std::string_view schedule, int64_t num_warmup_steps, int64_t num_training_steps);

/// What the rate is multiplied by within the warm-up.
double warmup_factor(int64_t step, int64_t num_warmup_steps);

/// Steps after the warm-up in proportion to all of them: 0 at its end, 1 at the schedule's.
double progress_after_warmup(int64_t step, int64_t num_warmup_steps, int64_t num_training_steps);

}  // namespace accelerate::optim

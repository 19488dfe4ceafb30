// SPDX-License-Identifier: Apache-2.0
// Private: shared by transformers' schedules (transformers/optimization.py).
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate::optim {

/// \throws Error (usage) if an argument is not a number of steps, or the schedule is shorter than its warm-up.
void check_warmup(std::string_view schedule, int64_t num_warmup_steps, int64_t num_training_steps);

/// Factor of the rate within the warm-up.
double warmup_factor(int64_t step, int64_t num_warmup_steps);

/// Progress from 0 at the end of the warm-up to 1 at the end of the schedule.
double progress_after_warmup(int64_t step, int64_t num_warmup_steps, int64_t num_training_steps);

}  // namespace accelerate::optim

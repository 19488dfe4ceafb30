// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// transformers' get_polynomial_decay_schedule_with_warmup: from 0 to the optimizer's rate in num_warmup_steps, then as
/// a polynomial to lr_end after num_training_steps optimizer steps. Groups with the optimizer's default rate reach
/// lr_end; the others keep their proportion to it, as in transformers.
/// \throws Error (usage) unless num_training_steps is above num_warmup_steps and the default rate above lr_end.
[[nodiscard]] Scheduler get_polynomial_decay_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                                  int64_t num_warmup_steps, int64_t num_training_steps,
                                                                  double lr_end = 1e-7, double power = 1.0);

}  // namespace accelerate::optim

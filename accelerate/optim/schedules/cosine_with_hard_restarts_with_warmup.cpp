// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/cosine_with_hard_restarts_with_warmup.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "accelerate/optim/schedules/checks.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/warmup.hpp"

namespace accelerate::optim {

Scheduler get_cosine_with_hard_restarts_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                             int64_t num_warmup_steps, int64_t num_training_steps,
                                                             int64_t num_cycles) {
  constexpr const char* name = "cosine_with_hard_restarts_schedule_with_warmup";
  check_warmup(name, num_warmup_steps, num_training_steps);
  check_at_least(name, "num_cycles", num_cycles, 1);
  const auto factor = [=](int64_t step) {
    if (step < num_warmup_steps) return warmup_factor(step, num_warmup_steps);
    const double progress = progress_after_warmup(step, num_warmup_steps, num_training_steps);
    if (progress >= 1.0) return 0.0;
    const double of_wave = std::fmod(static_cast<double>(num_cycles) * progress, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * of_wave)));
  };
  return {optimizer, factor_rule(name, factor, num_training_steps)};
}

}  // namespace accelerate::optim

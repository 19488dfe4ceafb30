// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/linear_with_warmup.hpp"

#include <algorithm>

#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/warmup.hpp"

namespace accelerate::optim {

Scheduler get_linear_schedule_with_warmup(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                          int64_t num_training_steps) {
  constexpr const char* name = "linear_schedule_with_warmup";
  check_warmup(name, num_warmup_steps, num_training_steps);
  const auto decay_steps = static_cast<double>(std::max<int64_t>(1, num_training_steps - num_warmup_steps));
  const auto factor = [=](int64_t step) {
    if (step < num_warmup_steps) return warmup_factor(step, num_warmup_steps);
    return std::max(0.0, static_cast<double>(num_training_steps - step) / decay_steps);
  };
  return {optimizer, factor_rule(name, factor, num_training_steps)};
}

}  // namespace accelerate::optim

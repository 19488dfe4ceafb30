// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/constant_with_warmup.hpp"

#include "accelerate/optim/schedules/checks.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/warmup.hpp"

namespace accelerate::optim {

Scheduler get_constant_schedule_with_warmup(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps) {
  constexpr const char* name = "constant_schedule_with_warmup";
  check_at_least(name, "num_warmup_steps", num_warmup_steps, 0);
  return {optimizer, factor_rule(name, [=](int64_t step) {
            return step < num_warmup_steps ? warmup_factor(step, num_warmup_steps) : 1.0;
          })};
}

}  // namespace accelerate::optim

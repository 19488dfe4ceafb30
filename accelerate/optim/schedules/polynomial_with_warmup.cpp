// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/polynomial_with_warmup.hpp"

#include <torch/optim/optimizer.h>

#include <cmath>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/checks.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/warmup.hpp"

namespace accelerate::optim {

Scheduler get_polynomial_decay_schedule_with_warmup(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                                    int64_t num_training_steps, double lr_end, double power) {
  constexpr const char* name = "polynomial_decay_schedule_with_warmup";
  check_warmup(name, num_warmup_steps, num_training_steps);
  check_at_least(name, "num_training_steps", num_training_steps, num_warmup_steps + 1);
  const double lr_init = optimizer.defaults().get_lr();
  if (!(lr_init > lr_end)) {
    base::fail(ErrorKind::usage, {}, name, "lr_end is {}, the optimizer's default rate {}; lr_end must be below it",
               lr_end, lr_init);
  }
  const auto factor = [=](int64_t step) {
    if (step < num_warmup_steps) return warmup_factor(step, num_warmup_steps);
    if (step > num_training_steps) return lr_end / lr_init;
    const double done =
        static_cast<double>(step - num_warmup_steps) / static_cast<double>(num_training_steps - num_warmup_steps);
    return ((lr_init - lr_end) * std::pow(1 - done, power) + lr_end) / lr_init;
  };
  return {optimizer, factor_rule(name, factor, num_training_steps)};
}

}  // namespace accelerate::optim

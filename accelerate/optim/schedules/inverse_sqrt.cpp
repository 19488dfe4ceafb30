// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/inverse_sqrt.hpp"

#include <cmath>

#include "accelerate/optim/schedules/checks.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/warmup.hpp"

namespace accelerate::optim {

Scheduler get_inverse_sqrt_schedule(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                    std::optional<int64_t> timescale) {
  constexpr const char* name = "inverse_sqrt_schedule";
  check_at_least(name, "num_warmup_steps", num_warmup_steps, 0);
  const int64_t scale = timescale.value_or(num_warmup_steps > 0 ? num_warmup_steps : 10'000);
  check_at_least(name, "timescale", scale, 1);
  return {optimizer, factor_rule(name, [=](int64_t step) {
            if (step < num_warmup_steps) return warmup_factor(step, num_warmup_steps);
            const int64_t shifted = step + scale - num_warmup_steps;
            return 1.0 / std::sqrt(static_cast<double>(shifted) / static_cast<double>(scale));
          })};
}

}  // namespace accelerate::optim

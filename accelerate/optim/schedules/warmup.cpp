// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/warmup.hpp"

#include <algorithm>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/checks.hpp"

namespace accelerate::optim {

void check_warmup(std::string_view schedule, int64_t num_warmup_steps, int64_t num_training_steps) {
  check_at_least(schedule, "num_warmup_steps", num_warmup_steps, 0);
  check_at_least(schedule, "num_training_steps", num_training_steps, 1);
  if (num_training_steps >= num_warmup_steps) return;
  base::fail(ErrorKind::usage, {}, schedule,
             "num_training_steps is {}, num_warmup_steps {}: the schedule is shorter than its warm-up; lower "
             "num_warmup_steps or raise num_training_steps, both counted in optimizer steps of the whole job",
             num_training_steps, num_warmup_steps);
}

double warmup_factor(int64_t step, int64_t num_warmup_steps) {
  return static_cast<double>(step) / static_cast<double>(num_warmup_steps);
}

double progress_after_warmup(int64_t step, int64_t num_warmup_steps, int64_t num_training_steps) {
  const int64_t all = std::max<int64_t>(1, num_training_steps - num_warmup_steps);
  return static_cast<double>(step - num_warmup_steps) / static_cast<double>(all);
}

}  // namespace accelerate::optim

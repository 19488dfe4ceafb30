// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/checks.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::optim {

void check_at_least(std::string_view schedule, std::string_view argument, int64_t value, int64_t least) {
  if (value >= least) return;
  base::fail(ErrorKind::usage, {}, schedule, "{} is {}, must be at least {}", argument, value, least);
}

void check_gamma(std::string_view schedule, double gamma) {
  if (gamma >= 0) return;
  base::fail(ErrorKind::usage, {}, schedule, "gamma is {}, must be at least 0: rates are multiplied by it", gamma);
}

void check_up_to_1(std::string_view schedule, std::string_view argument, double value, bool above_0) {
  if ((above_0 ? value > 0 : value >= 0) && value <= 1) return;
  base::fail(ErrorKind::usage, {}, schedule, "{} is {}, must be {} and at most 1", argument, value,
             above_0 ? "above 0" : "at least 0");
}

}  // namespace accelerate::optim

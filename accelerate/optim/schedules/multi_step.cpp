// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/multi_step.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/checks.hpp"

namespace accelerate::optim {
namespace {

Rule multi_step_rule(std::vector<int64_t> milestones, double gamma) {
  if (milestones.empty()) {
    base::fail(ErrorKind::usage, {}, "MultiStepLR",
               "there are 0 milestones, must be at least 1; a rate that stays is get_constant_schedule");
  }
  for (const int64_t milestone : milestones) check_at_least("MultiStepLR", "a milestone", milestone, 0);
  check_gamma("MultiStepLR", gamma);
  return {.name = "MultiStepLR", .rate = [milestones = std::move(milestones), gamma](const Position& at) {
            const auto times = std::count(milestones.begin(), milestones.end(), at.step);
            return times == 0 ? at.now : at.now * std::pow(gamma, static_cast<double>(times));
          }};
}

}  // namespace

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, std::vector<int64_t> milestones, double gamma)
    : Scheduler(optimizer, multi_step_rule(std::move(milestones), gamma)) {}

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/step.hpp"

#include "accelerate/optim/schedules/checks.hpp"

namespace accelerate::optim {
namespace {

Rule step_rule(int64_t step_size, double gamma) {
  check_at_least("StepLR", "step_size", step_size, 1);
  check_gamma("StepLR", gamma);
  return {.name = "StepLR", .rate = [=](const Position& at) {
            return at.step == 0 || at.step % step_size != 0 ? at.now : at.now * gamma;
          }};
}

}  // namespace

StepLR::StepLR(torch::optim::Optimizer& optimizer, int64_t step_size, double gamma)
    : Scheduler(optimizer, step_rule(step_size, gamma)) {}

}  // namespace accelerate::optim

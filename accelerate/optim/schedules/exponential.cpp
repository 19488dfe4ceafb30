// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/exponential.hpp"

#include "accelerate/optim/schedules/checks.hpp"

namespace accelerate::optim {
namespace {

Rule exponential_rule(double gamma) {
  check_gamma("ExponentialLR", gamma);
  return {.name = "ExponentialLR", .rate = [=](const Position& at) { return at.step == 0 ? at.now : at.now * gamma; }};
}

}  // namespace

ExponentialLR::ExponentialLR(torch::optim::Optimizer& optimizer, double gamma)
    : Scheduler(optimizer, exponential_rule(gamma)) {}

}  // namespace accelerate::optim

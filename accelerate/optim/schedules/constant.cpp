// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/constant.hpp"

#include "accelerate/optim/schedules/checks.hpp"
#include "accelerate/optim/schedules/lambda.hpp"

namespace accelerate::optim {
namespace {

Rule constant_rule(double factor, int64_t total_iters) {
  check_up_to_1("ConstantLR", "factor", factor);
  check_at_least("ConstantLR", "total_iters", total_iters, 1);
  return {.name = "ConstantLR", .rate = [=](const Position& at) {
            if (at.step == 0) return at.now * factor;
            if (at.step != total_iters) return at.now;
            return factor == 0 ? at.base : at.now * (1.0 / factor);
          }};
}

}  // namespace

ConstantLR::ConstantLR(torch::optim::Optimizer& optimizer, double factor, int64_t total_iters)
    : Scheduler(optimizer, constant_rule(factor, total_iters)) {}

Scheduler get_constant_schedule(torch::optim::Optimizer& optimizer) {
  return {optimizer, factor_rule("constant_schedule", [](int64_t) { return 1.0; })};
}

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/linear.hpp"

#include "accelerate/optim/schedules/checks.hpp"

namespace accelerate::optim {
namespace {

Rule linear_rule(double start, double end, int64_t total_iters) {
  check_up_to_1("LinearLR", "start_factor", start, /*above_0=*/true);
  check_up_to_1("LinearLR", "end_factor", end);
  check_at_least("LinearLR", "total_iters", total_iters, 1);
  return {.name = "LinearLR", .rate = [=, total = static_cast<double>(total_iters)](const Position& at) {
            if (at.step == 0) return at.now * start;
            if (at.step > total_iters) return at.now;
            return at.now * (1.0 + (end - start) / (total * start + static_cast<double>(at.step - 1) * (end - start)));
          }};
}

}  // namespace

LinearLR::LinearLR(torch::optim::Optimizer& optimizer, double start_factor, double end_factor, int64_t total_iters)
    : Scheduler(optimizer, linear_rule(start_factor, end_factor, total_iters)) {}

}  // namespace accelerate::optim

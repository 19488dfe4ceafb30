// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/polynomial.hpp"

#include <cmath>

#include "accelerate/optim/schedules/checks.hpp"

namespace accelerate::optim {
namespace {

Rule polynomial_rule(int64_t total_iters, double power) {
  check_at_least("PolynomialLR", "total_iters", total_iters, 1);
  const auto left = [total = static_cast<double>(total_iters)](int64_t step) {
    return 1.0 - static_cast<double>(step) / total;
  };
  return {.name = "PolynomialLR",
          .rate =
              [=](const Position& at) {
                if (at.step == 0 || at.step > total_iters) return at.now;
                return at.now * std::pow(left(at.step) / left(at.step - 1), power);
              },
          .last_step = total_iters};
}

}  // namespace

PolynomialLR::PolynomialLR(torch::optim::Optimizer& optimizer, int64_t total_iters, double power)
    : Scheduler(optimizer, polynomial_rule(total_iters, power)) {}

}  // namespace accelerate::optim

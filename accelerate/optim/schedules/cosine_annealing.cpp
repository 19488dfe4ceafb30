// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/cosine_annealing.hpp"

#include <cmath>
#include <numbers>

#include "accelerate/optim/schedules/checks.hpp"

namespace accelerate::optim {
namespace {

Rule cosine_annealing_rule(int64_t T_max, double eta_min) {
  check_at_least("CosineAnnealingLR", "T_max", T_max, 1);
  const auto length = static_cast<double>(T_max);
  const auto height = [=](int64_t step) { return 1 + std::cos(std::numbers::pi * static_cast<double>(step) / length); };
  return {.name = "CosineAnnealingLR", .rate = [=](const Position& at) {
            if (at.step == 0) return at.now;
            // The previous step was the minimum, so the current rate no longer determines the wave's height.
            if ((at.step - 1 - T_max) % (2 * T_max) == 0) {
              return at.now + (at.base - eta_min) * (1 - std::cos(std::numbers::pi / length)) / 2;
            }
            return height(at.step) / height(at.step - 1) * (at.now - eta_min) + eta_min;
          }};
}

}  // namespace

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer, int64_t T_max, double eta_min)
    : Scheduler(optimizer, cosine_annealing_rule(T_max, eta_min)) {}

}  // namespace accelerate::optim

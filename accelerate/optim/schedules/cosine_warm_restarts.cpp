// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/cosine_warm_restarts.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "accelerate/optim/schedules/checks.hpp"

namespace accelerate::optim {
namespace {

struct Wave {
  int64_t step;
  int64_t length;
};

/// Returns the wave of a step and the position in it.
Wave wave_at(int64_t step, int64_t length, int64_t growth) {
  if (growth == 1) return {step % length, length};
  while (step >= length) {
    step -= length;
    length *= growth;
  }
  return {step, length};
}

Rule warm_restarts_rule(int64_t T_0, int64_t T_mult, double eta_min) {
  constexpr const char* name = "CosineAnnealingWarmRestarts";
  check_at_least(name, "T_0", T_0, 1);
  check_at_least(name, "T_mult", T_mult, 1);
  return {.name = name,
          .rate =
              [=](const Position& at) {
                const Wave wave = wave_at(at.step, T_0, T_mult);
                const double angle =
                    std::numbers::pi * static_cast<double>(wave.step) / static_cast<double>(wave.length);
                return eta_min + (at.base - eta_min) * (1 + std::cos(angle)) / 2;
              },
          .python =
              [=](const state::SchedulerState& saved) {
                const Wave wave = wave_at(std::max<int64_t>(saved.steps, 0), T_0, T_mult);
                return state::PythonSchedule{.members = {{"T_0", T_0},
                                                         {"T_i", wave.length},
                                                         {"T_mult", T_mult},
                                                         {"eta_min", eta_min},
                                                         {"T_cur", wave.step}},
                                             .parts = {}};
              }};
}

}  // namespace

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer, int64_t T_0,
                                                         int64_t T_mult, double eta_min)
    : Scheduler(optimizer, warm_restarts_rule(T_0, T_mult, eta_min)) {}

}  // namespace accelerate::optim

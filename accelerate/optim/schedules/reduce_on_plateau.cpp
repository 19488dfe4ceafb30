// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/reduce_on_plateau.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/checks.hpp"
#include "accelerate/optim/schedules/groups.hpp"

namespace accelerate::optim {
namespace {

constexpr const char* kPlateau = "ReduceLROnPlateau";

double worst(PlateauMode mode) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return mode == PlateauMode::min ? infinity : -infinity;
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options)
    : optimizer_(&optimizer), options_(std::move(options)), plateau_{.best = worst(options_.mode)} {
  if (!(options_.factor >= 0 && options_.factor < 1)) {
    base::fail(ErrorKind::usage, {}, kPlateau, "factor is {}, must be at least 0 and below 1", options_.factor);
  }
  check_at_least(kPlateau, "patience", options_.patience, 0);
  check_at_least(kPlateau, "cooldown", options_.cooldown, 0);
  static_cast<void>(options_.min_lr.of(optimizer.param_groups().size(), kPlateau, "min_lr"));
}

void ReduceLROnPlateau::step(double metric) {
  ++steps_;
  if (is_better(metric)) {
    plateau_.best = metric;
    plateau_.num_bad = 0;
  } else {
    ++plateau_.num_bad;
  }
  if (plateau_.cooldown > 0) {
    --plateau_.cooldown;
    plateau_.num_bad = 0;
  }
  if (plateau_.num_bad > options_.patience) {
    reduce();
    plateau_.cooldown = options_.cooldown;
    plateau_.num_bad = 0;
  }
}

// PyTorch multiplies the best metric by 1 - threshold or 1 + threshold, which is wrong for negative metrics.
bool ReduceLROnPlateau::is_better(double metric) const {
  const double best = plateau_.best;
  const bool lower = options_.mode == PlateauMode::min;
  if (std::isinf(best)) return lower ? metric < best : metric > best;
  const double size = options_.threshold_mode == ThresholdMode::rel ? std::abs(best) : 1.0;
  const double needed = options_.threshold * size;
  return lower ? metric < best - needed : metric > best + needed;
}

void ReduceLROnPlateau::reduce() {
  auto rates = get_last_lr();
  const auto least = options_.min_lr.of(rates.size(), kPlateau, "min_lr");
  for (size_t i = 0; i < rates.size(); ++i) {
    const double reduced = std::max(rates[i] * options_.factor, least[i]);
    if (rates[i] - reduced > options_.eps) rates[i] = reduced;
  }
  set_rates(*optimizer_, rates);
}

std::vector<double> ReduceLROnPlateau::get_last_lr() const { return rates_of(*optimizer_); }

state::SchedulerState ReduceLROnPlateau::state() const {
  const auto rates = get_last_lr();
  return {.name = kPlateau, .steps = steps_, .base_lrs = rates, .last_lrs = rates, .plateau = plateau_};
}

void ReduceLROnPlateau::load_state(const state::SchedulerState& state) {
  check_scheduler_state(state, kPlateau, *optimizer_);
  if (!state.plateau) {
    base::fail(ErrorKind::data, {}, "load_state",
               "the saved state of {} has no best metric; it was not written by this library", kPlateau);
  }
  set_rates(*optimizer_, state.last_lrs);
  plateau_ = *state.plateau;
  steps_ = state.steps;
}

}  // namespace accelerate::optim

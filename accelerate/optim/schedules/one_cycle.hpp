// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "accelerate/optim/schedules/per_group.hpp"
#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

enum class AnnealStrategy { cos, linear };

struct OneCycleOptions {
  /// Fraction of total_steps in which the rate rises.
  double pct_start = 0.3;
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  /// If true, the momentum (Adam's and AdamW's beta1) moves inversely between these two values.
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.85;
  PerGroup max_momentum = 0.95;
  /// The first rate is max_lr / div_factor, the last one is the first rate / final_div_factor.
  double div_factor = 25.0;
  double final_div_factor = 1e4;
  /// If true, the rate falls to the first rate as fast as it rose, and then to the last one.
  bool three_phase = false;
};

/// PyTorch's OneCycleLR and defaults: the rate rises to max_lr and falls again over total_steps rates, the last one
/// after total_steps - 1 optimizer steps. One further step keeps the last rate (PyTorch's rises again); another one
/// throws.
///
/// \param max_lr  One number for all parameter groups, or one each; the optimizer's own rates are ignored.
/// \throws Error (usage) for total_steps below 1, a pct_start outside [0, 1] or of exactly one step, divisors not above
///         0, lists with another length than the groups, and an optimizer without momentum unless cycle_momentum is
///         false.
struct OneCycleLR : Scheduler {
  OneCycleLR(torch::optim::Optimizer& optimizer, const PerGroup& max_lr, int64_t total_steps,
             const OneCycleOptions& options = {});
};

}  // namespace accelerate::optim

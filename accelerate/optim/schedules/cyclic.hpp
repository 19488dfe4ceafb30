// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "accelerate/optim/schedules/per_group.hpp"
#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

enum class CyclicMode {
  triangular,   ///< all cycles have the same height
  triangular2,  ///< each cycle has half the height of the previous one
  exp_range,    ///< the height is multiplied by gamma at every step
};

/// Argument of a scale_fn.
enum class CyclicScale {
  cycle,       ///< the number of the cycle, from 1
  iterations,  ///< the number of optimizer steps
};

struct CyclicOptions {
  /// Optimizer steps from base_lr to max_lr.
  int64_t step_size_up = 2000;
  /// Optimizer steps of the descent. If unset, the same number as for the ascent.
  std::optional<int64_t> step_size_down{};
  CyclicMode mode = CyclicMode::triangular;
  double gamma = 1.0;  ///< for exp_range
  /// If set, replaces the mode's factor of the cycle's height.
  std::function<double(double)> scale_fn{};
  CyclicScale scale_mode = CyclicScale::cycle;
  /// If true, the momentum (Adam's and AdamW's beta1) moves inversely between these two values.
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.8;
  PerGroup max_momentum = 0.9;
};

/// PyTorch's CyclicLR and defaults: the rate oscillates between base_lr and max_lr.
///
/// \param base_lr  One number for all parameter groups, or one each, like max_lr; the optimizer's own rates are
///                 ignored.
/// \throws Error (usage) for step_size_up below 1, step_size_down or gamma below 0, lists with another length than the
///         groups, and an optimizer without momentum unless cycle_momentum is false.
struct CyclicLR : Scheduler {
  CyclicLR(torch::optim::Optimizer& optimizer, const PerGroup& base_lr, const PerGroup& max_lr,
           const CyclicOptions& options = {});
};

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "accelerate/optim/schedules/per_group.hpp"
#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

enum class CyclicMode {
  triangular,   ///< all cycles alike
  triangular2,  ///< each half as high as the one before
  exp_range,    ///< the height times gamma at every step
};

/// What a scale_fn is given.
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
  double gamma = 1.0;  ///< of exp_range
  /// In place of the mode's: multiplies the height of the cycle.
  std::function<double(double)> scale_fn{};
  CyclicScale scale_mode = CyclicScale::cycle;
  /// The momentum (Adam's and AdamW's beta1) goes the other way, between these two.
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.8;
  PerGroup max_momentum = 0.9;
};

/// The rate oscillates between base_lr and max_lr; PyTorch's CyclicLR and defaults.
///
/// \param base_lr  One number for all parameter groups, or one each, like max_lr; the optimizer's own rates are
/// ignored. \throws Error (usage) for step_size_up below 1, step_size_down or gamma below 0, lists with another length
/// than the
///         groups, and an optimizer without momentum unless cycle_momentum is false.
struct CyclicLR : Scheduler {
  CyclicLR(torch::optim::Optimizer& optimizer, const PerGroup& base_lr, const PerGroup& max_lr,
           const CyclicOptions& options = {});
};

}  // namespace accelerate::optim

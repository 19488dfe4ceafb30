// SPDX-License-Identifier: Apache-2.0
// The schedule that follows a metric; not a Scheduler, because it has no rule of steps.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/optim/schedules/per_group.hpp"
#include "accelerate/state/scheduler_state.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

enum class PlateauMode { min, max };    ///< a metric is better when it is smaller, or greater
enum class ThresholdMode { rel, abs };  ///< better by a part of the best one, or by a difference

struct PlateauOptions {
  PlateauMode mode = PlateauMode::min;
  /// What rates are multiplied by, at least 0 and below 1.
  double factor = 0.1;
  /// Metrics in a row that may be no better before rates are reduced.
  int64_t patience = 10;
  /// A metric is better if it passes the best one by more than this part of the best one's size (rel), or by more than
  /// this number (abs).
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
  /// Metrics after a reduction that do not count as bad.
  int64_t cooldown = 0;
  /// Rates do not go below it: one number, or one for each parameter group.
  PerGroup min_lr = 0.0;
  /// A smaller change of a rate is not made.
  double eps = 1e-8;
};

/// Reduces the rates when a metric has stopped improving; PyTorch's ReduceLROnPlateau and defaults, in double
/// precision. Unlike there, negative metrics are compared rightly in relative mode. The optimizer must outlive it. By
/// itself it knows one process only; prepared, all ranks follow the mean of their metrics.
class ReduceLROnPlateau {
 public:
  /// Throws Error (usage) for a factor outside [0, 1), a negative patience or cooldown, and min_lr of another length
  /// than the groups.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  /// metric   of one validation; NaN is no better
  /// Throws Error (usage) when groups were added for which min_lr has no number.
  void step(double metric);
  /// Metrics seen.
  [[nodiscard]] int64_t steps() const { return steps_; }
  [[nodiscard]] std::vector<double> get_last_lr() const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }

  [[nodiscard]] state::SchedulerState state() const;
  /// As Scheduler::load_state; the options are this schedule's own.
  void load_state(const state::SchedulerState& state);

 private:
  [[nodiscard]] bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer* optimizer_;
  PlateauOptions options_;
  state::PlateauState plateau_;
  int64_t steps_ = 0;
};

}  // namespace accelerate::optim

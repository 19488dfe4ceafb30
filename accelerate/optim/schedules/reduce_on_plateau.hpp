// SPDX-License-Identifier: Apache-2.0
// A schedule that depends on a metric. It is not a Scheduler, because it has no rule of steps.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/optim/schedules/per_group.hpp"
#include "accelerate/state/scheduler_state.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

enum class PlateauMode { min, max };    ///< whether smaller or greater metrics are better
enum class ThresholdMode { rel, abs };  ///< threshold as a fraction of the best metric, or as a difference

struct PlateauOptions {
  PlateauMode mode = PlateauMode::min;
  /// Factor of the rates, at least 0 and below 1.
  double factor = 0.1;
  /// Number of consecutive metrics without improvement before rates are reduced.
  int64_t patience = 10;
  /// Minimum improvement on the best metric: a fraction of its absolute value (rel), or a difference (abs).
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
  /// Number of metrics after a reduction that are not compared.
  int64_t cooldown = 0;
  /// Lower limit of the rates: one number, or one for each parameter group.
  PerGroup min_lr = 0.0;
  /// Minimum change of a rate; smaller changes are omitted.
  double eps = 1e-8;
};

/// PyTorch's ReduceLROnPlateau and defaults: reduces the rates when a metric stops improving, in double precision.
/// Unlike in PyTorch, negative metrics are compared correctly in relative mode. The optimizer must outlive this object.
/// It works on one process; after prepare(), all ranks follow the mean of their metrics. Not thread-safe.
class ReduceLROnPlateau {
 public:
  /// \throws Error (usage) for a factor outside [0, 1), a negative patience or cooldown, and min_lr with another length
  ///         than the groups.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  /// \param metric  Result of one validation; NaN is not an improvement.
  /// \throws Error (usage) if groups were added for which min_lr has no number.
  void step(double metric);
  /// Number of metrics so far.
  [[nodiscard]] int64_t steps() const { return steps_; }
  /// Current rate of each parameter group.
  [[nodiscard]] std::vector<double> get_last_lr() const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }

  /// State for a resume.
  [[nodiscard]] state::SchedulerState state() const;
  /// As Scheduler::load_state; the state does not contain the options.
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

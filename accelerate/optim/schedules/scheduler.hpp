// SPDX-License-Identifier: Apache-2.0
// Base of all learning-rate schedules except ReduceLROnPlateau: a rule, an optimizer and a step count.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/optim/schedules/rule.hpp"
#include "accelerate/state/scheduler_state.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// Sets the learning rate of each parameter group after each optimizer step, as PyTorch's LRScheduler does
/// (torch/optim/lr_scheduler.py). The constructor sets the rates for 0 steps. The optimizer must outlive the schedule.
///
/// For a custom schedule, use LambdaLR, or derive from this class and pass a factor or a rule.
/// Not thread-safe.
/// \note LibTorch's StepLR lags one call behind Python's; accelerate::optim::StepLR does not.
class Scheduler {
 public:
  /// Maps the number of optimizer steps to a factor of the group's rate at construction.
  using Factor = std::function<double(int64_t steps)>;

  /// \throws Error (usage) for an empty function.
  Scheduler(torch::optim::Optimizer& optimizer, Factor factor);
  Scheduler(torch::optim::Optimizer& optimizer, Rule rule);

  /// Advances by one optimizer step. A call that throws changes nothing.
  /// \throws Error (usage) if a parameter group was added to the optimizer after construction. Exceptions of the rule
  ///         propagate.
  void step();
  /// Number of optimizer steps so far.
  [[nodiscard]] int64_t steps() const { return steps_; }
  /// Step after which a prepared schedule stays constant. If unset, the schedule has no last step.
  [[nodiscard]] const std::optional<int64_t>& last_step() const { return rule_.last_step; }
  /// Current rate of each parameter group.
  [[nodiscard]] std::vector<double> get_last_lr() const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] const std::string& name() const { return rule_.name; }

  /// State for a resume; accelerate/optim/schedules/scheduler_state.hpp converts it to JSON.
  [[nodiscard]] state::SchedulerState state() const;
  /// Continues from a saved state. Sets the optimizer's rates, and its momenta if the rule has momentum. The state does
  /// not contain the rule's arguments and functions. \throws Error (usage) if the state is from another kind of
  /// schedule or has another number of parameter groups.
  void load_state(const state::SchedulerState& state);

 private:
  friend class Combined;

  void set(int64_t step);

  torch::optim::Optimizer* optimizer_;
  Rule rule_;
  std::vector<double> found_;  // rates at construction
  std::vector<double> base_;
  int64_t steps_ = 0;
  int64_t made_;  // creation order among all schedules
};

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
// What all learning-rate schedules are, but ReduceLROnPlateau: a rule, an optimizer and a count of steps.
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
/// (torch/optim/lr_scheduler.py); construction sets the rates for 0 steps. The optimizer must outlive the schedule.
///
/// A schedule of one's own is LambdaLR, or a type that derives from this one and gives it a factor or a rule.
/// (LibTorch's own StepLR lags one call behind Python's; the one here does not.)
class Scheduler {
 public:
  /// of the number of optimizer steps; multiplies the rate that each group had when the schedule was made
  using Factor = std::function<double(int64_t steps)>;

  Scheduler(torch::optim::Optimizer& optimizer, Factor factor);
  Scheduler(torch::optim::Optimizer& optimizer, Rule rule);

  /// One more optimizer step was made. A step that throws changes nothing.
  /// Throws Error (usage) when the optimizer got another parameter group meanwhile, and where the rule does.
  void step();
  [[nodiscard]] int64_t steps() const { return steps_; }
  /// Step after which it rests when it is prepared; unset: it goes on for ever.
  [[nodiscard]] const std::optional<int64_t>& last_step() const { return rule_.last_step; }
  /// The rate of each parameter group now in force.
  [[nodiscard]] std::vector<double> get_last_lr() const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] const std::string& name() const { return rule_.name; }

  /// What another run needs to go on here; accelerate/optim/schedules/scheduler_state.hpp makes JSON of it.
  [[nodiscard]] state::SchedulerState state() const;
  /// Goes on where the saved one stood and sets the optimizer's rates (and momenta, where the schedule moves them). The
  /// rule is this schedule's own: arguments and functions are not saved.
  /// Throws Error (usage) for the state of another kind of schedule, or of another number of parameter groups.
  void load_state(const state::SchedulerState& state);

 private:
  friend class Combined;

  void set(int64_t step);

  torch::optim::Optimizer* optimizer_;
  Rule rule_;
  std::vector<double> found_;  // rates before this schedule
  std::vector<double> base_;
  int64_t steps_ = 0;
  int64_t made_;  // counts all schedules
};

}  // namespace accelerate::optim

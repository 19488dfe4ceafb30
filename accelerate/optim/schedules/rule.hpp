// SPDX-License-Identifier: Apache-2.0
// A schedule as a value: the rate of each parameter group as a function of the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/state/scheduler_state.hpp"

namespace accelerate::optim {

/// Input of a rule for one parameter group.
struct Position {
  int64_t step = 0;  ///< optimizer steps made since it began
  size_t group = 0;  ///< number of the parameter group
  double base = 0;   ///< the group's rate when the schedule was made; PyTorch's base_lr
  double now = 0;    ///< the group's current rate, from the previous step or a later change by user code
};

/// Stateless functions of the position, so that rules can be combined.
///
/// As in PyTorch, most rates depend on the current rate. Schedules can therefore be chained, and user code can change
/// rates.
struct Rule {
  std::string name;                             ///< shown in errors and saved states
  std::function<double(const Position&)> rate;  ///< learning rate from the given step on
  /// The same for momentum or beta1. If the function is empty or returns nothing, momentum is unchanged. If it is not
  /// empty, the optimizer must have a momentum.
  std::function<std::optional<double>(const Position&)> momentum{};
  /// Step after which a prepared schedule stays constant. If unset, the schedule has no last step.
  std::optional<int64_t> last_step{};
  /// Base rate of each group. If empty, each group's own rate is the base.
  std::vector<double> begins_at{};
  /// If true, begins_at is also the base of the rules that are combined with this one, even if this one is not the
  /// first.
  bool begins_for_all = false;
  /// For a combination with begins_at rates in its parts: the base rates for the rules that are combined with it. If
  /// empty, begins_at is used.
  std::vector<double> others_begin_at{};
  /// Further members of PyTorch's schedule of that name, besides step and rates. If empty, it has none.
  std::function<state::PythonSchedule(const state::SchedulerState&)> python{};
};

}  // namespace accelerate::optim

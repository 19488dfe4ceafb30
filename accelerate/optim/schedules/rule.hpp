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

/// Functions of the position, without memory, so that rules can be made of rules.
///
/// Most rates follow from the one in force, as in PyTorch: schedules may then be chained, and rates changed by hand.
struct Rule {
  std::string name;                             ///< in errors and saved states
  std::function<double(const Position&)> rate;  ///< learning rate from that step on
  /// Momentum, or beta1, likewise; empty, or no number: it is left alone. Not empty: the optimizer must have one.
  std::function<std::optional<double>(const Position&)> momentum{};
  /// Step after which a prepared schedule stays constant. If unset, there is none.
  std::optional<int64_t> last_step{};
  /// Rate of each group that takes the place of the group's own as base; empty: none does.
  std::vector<double> begins_at{};
  /// begins_at takes that place for the rules that are combined with it too, not only where it is the first.
  bool begins_for_all = false;
  /// Of a combination whose parts begin at rates of their own: what the rules that it is combined with take for the
  /// groups' own. Empty: begins_at.
  std::vector<double> others_begin_at{};
  /// What PyTorch's schedule of that name remembers beside the step and the rates, which are given. Empty: nothing.
  std::function<state::PythonSchedule(const state::SchedulerState&)> python{};
};

}  // namespace accelerate::optim

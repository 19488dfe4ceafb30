// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace accelerate::state {

/// What a schedule that follows a metric remembers.
struct PlateauState {
  double best = 0;
  int64_t num_bad = 0;   ///< metrics in a row that were no better
  int64_t cooldown = 0;  ///< number of further metrics that do not count as bad

  bool operator==(const PlateauState&) const = default;
};

struct SchedulerState;

/// What PyTorch's schedule of a kind remembers and ours computes from the step, by PyTorch's names: written for its
/// load_state_dict(), never loaded here.
struct PythonSchedule {
  using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
  using Dict = std::vector<std::pair<std::string, Value>>;

  Dict members{};
  std::vector<Dict> phases{};  ///< of OneCycleLR
  /// What it keeps in the optimizer's parameter groups, a number for each.
  std::map<std::string, std::vector<double>> of_groups{};
  /// Schedules that it is made of; one whose turn is to come has -1 steps. Without braces, because SchedulerState is
  /// incomplete here: clang instantiates the constructor for `{}` at once.
  std::vector<SchedulerState> parts;
  bool counts = true;  ///< false: only its parts know how many steps were made

  /// It follows from the rest.
  bool operator==(const PythonSchedule&) const { return true; }
};

/// State of a learning-rate schedule, equal on all ranks. The schedule's arguments are not included.
struct SchedulerState {
  std::string name{};  ///< kind of schedule, with those it is made of
  int64_t steps = 0;
  std::vector<double> base_lrs{};  ///< of each parameter group when the schedule was made
  std::vector<double> last_lrs{};  ///< of each parameter group, in force
  std::vector<double> momenta{};   ///< of each parameter group, in force; empty where the schedule leaves them alone
  std::optional<PlateauState> plateau{};
  PythonSchedule python{};

  bool operator==(const SchedulerState&) const = default;
};

}  // namespace accelerate::state

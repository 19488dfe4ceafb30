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

/// State of a scheduler that follows a metric.
struct PlateauState {
  double best = 0;
  int64_t num_bad = 0;   ///< number of consecutive metrics without improvement
  int64_t cooldown = 0;  ///< number of further metrics that do not count as bad

  bool operator==(const PlateauState&) const = default;
};

struct SchedulerState;

/// State that PyTorch's scheduler of the same kind stores but this library computes from the step. It is written under
/// PyTorch's names for PyTorch's load_state_dict(), and is never loaded here.
struct PythonSchedule {
  using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
  using Dict = std::vector<std::pair<std::string, Value>>;

  Dict members{};
  std::vector<Dict> phases{};  ///< of OneCycleLR
  /// Values in the optimizer's parameter groups, one per group.
  std::map<std::string, std::vector<double>> of_groups{};
  /// States of the contained schedulers; steps is -1 for one that has not started yet. Without braces, because
  /// SchedulerState is incomplete here: clang instantiates the constructor for `{}` at once.
  std::vector<SchedulerState> parts;
  bool counts = true;  ///< false if only the parts have a step count

  /// Always equal, because it follows from the other members of SchedulerState.
  bool operator==(const PythonSchedule&) const { return true; }
};

/// State of a learning-rate schedule, equal on all ranks. The schedule's arguments are not included.
struct SchedulerState {
  std::string name{};  ///< kind of scheduler, including the kinds of its parts
  int64_t steps = 0;
  std::vector<double> base_lrs{};  ///< per parameter group, at construction of the scheduler
  std::vector<double> last_lrs{};  ///< current value per parameter group
  /// current value per parameter group; empty if the scheduler does not change momentum
  std::vector<double> momenta{};
  std::optional<PlateauState> plateau{};
  PythonSchedule python{};

  bool operator==(const SchedulerState&) const = default;
};

}  // namespace accelerate::state

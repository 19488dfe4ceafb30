// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::state {

/// What a schedule that follows a metric remembers.
struct PlateauState {
  double best = 0;
  int64_t num_bad = 0;   ///< metrics in a row that were no better
  int64_t cooldown = 0;  ///< metrics to come that do not count as bad

  bool operator==(const PlateauState&) const = default;
};

/// Where a learning-rate schedule stands, the same on all ranks. Its arguments are not part of it.
struct SchedulerState {
  std::string name{};  ///< kind of schedule, with those it is made of
  int64_t steps = 0;
  std::vector<double> base_lrs{};  ///< of each parameter group when the schedule was made
  std::vector<double> last_lrs{};  ///< of each parameter group, in force
  std::vector<double> momenta{};   ///< of each parameter group, in force; empty where the schedule leaves them alone
  std::optional<PlateauState> plateau{};

  bool operator==(const SchedulerState&) const = default;
};

}  // namespace accelerate::state

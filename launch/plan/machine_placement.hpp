// SPDX-License-Identifier: Apache-2.0
// Determines the number of ranks, their machines, and the ranks of this machine.
#pragma once

#include <cstdint>
#include <vector>

#include "launch/plan/machine.hpp"
#include "launch/plan/options.hpp"

namespace accelerate::launch {

struct MachinePlacement {
  std::vector<int64_t> ranks_of_machine{1};
  int64_t machine_rank = 0;

  [[nodiscard]] int64_t machines() const { return static_cast<int64_t>(ranks_of_machine.size()); }
  [[nodiscard]] int64_t world_size() const;
  /// Number of ranks on this machine.
  [[nodiscard]] int64_t ranks_here() const { return ranks_of_machine.at(static_cast<size_t>(machine_rank)); }
  [[nodiscard]] int64_t first_rank() const;

  bool operator==(const MachinePlacement&) const = default;
};

/// \throws LaunchError (2) if machine_rank is out of range, if ranks_per_machine has another number of machines or
///         another sum, if the ranks do not divide evenly among the machines, or if several machines have no
///         main_process_ip.
MachinePlacement place_of(const LaunchOptions& options, const Machine& machine);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/machine_placement.hpp"

#include <algorithm>
#include <numeric>

#include "launch/plan/options_table.hpp"

namespace accelerate::launch {
namespace {

/// Default number of ranks: one per GPU, or one without GPUs.
int64_t ranks_of_this_machine(const LaunchOptions& options, const Machine& machine) {
  return on_cpu(options) ? 1 : std::max<int64_t>(1, machine.gpus);
}

void check_machines(const LaunchOptions& options, int64_t machines) {
  const int64_t rank = value_of(options, &LaunchOptions::machine_rank);
  if (rank >= machines) {
    fail(ErrorKind::usage, "machine_rank is {}, must be below num_machines, which is {}", rank, machines);
  }
  if (machines > 1 && !options.main_process_ip) {
    fail(ErrorKind::usage,
         "num_machines is {} without --main_process_ip; give the name or address of machine 0, the same on all of them",
         machines);
  }
  if (machines > 1 && options.main_process_port == 0) {
    fail(ErrorKind::usage,
         "--main_process_port 0 on {} machines: they cannot agree on a free one; give one, the same on all of them",
         machines);
  }
}

/// Uses ranks_per_machine.
MachinePlacement place_as_listed(const LaunchOptions& options, int64_t machines) {
  MachinePlacement place{.ranks_of_machine = *parse_ranks(*options.ranks_per_machine),
                         .machine_rank = value_of(options, &LaunchOptions::machine_rank)};
  if (place.machines() != machines) {
    fail(ErrorKind::usage, "ranks_per_machine is {}, which are {} machines; num_machines is {}",
         *options.ranks_per_machine, place.machines(), machines);
  }
  if (options.num_processes.value_or(place.world_size()) != place.world_size()) {
    fail(ErrorKind::usage, "ranks_per_machine is {}, which are {} ranks; num_processes is {}",
         *options.ranks_per_machine, place.world_size(), *options.num_processes);
  }
  return place;
}

/// Uses the same number of ranks on each machine.
MachinePlacement even_place(const LaunchOptions& options, const Machine& machine, int64_t machines) {
  const int64_t here = options.num_processes.value_or(machines * ranks_of_this_machine(options, machine)) / machines;
  if (options.num_processes.value_or(here * machines) != here * machines || here == 0) {
    fail(ErrorKind::usage, "num_processes is {} on {} machines, must be a multiple of {}: it counts the whole job",
         *options.num_processes, machines, machines);
  }
  return {.ranks_of_machine = std::vector<int64_t>(static_cast<size_t>(machines), here),
          .machine_rank = value_of(options, &LaunchOptions::machine_rank)};
}

}  // namespace

int64_t MachinePlacement::world_size() const {
  return std::accumulate(ranks_of_machine.begin(), ranks_of_machine.end(), int64_t{0});
}

int64_t MachinePlacement::first_rank() const {
  return std::accumulate(ranks_of_machine.begin(), ranks_of_machine.begin() + machine_rank, int64_t{0});
}

MachinePlacement place_of(const LaunchOptions& options, const Machine& machine) {
  const int64_t machines = value_of(options, &LaunchOptions::num_machines);
  check_machines(options, machines);
  const MachinePlacement place =
      options.ranks_per_machine ? place_as_listed(options, machines) : even_place(options, machine, machines);
  if (place.world_size() > kMaxProcesses) {
    fail(ErrorKind::usage, "{} ranks on {} machines, must be at most {}", place.world_size(), machines, kMaxProcesses);
  }
  return place;
}

}  // namespace accelerate::launch

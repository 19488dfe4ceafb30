// SPDX-License-Identifier: Apache-2.0
// What will be started, decided without starting anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/env/process_env.hpp"
#include "launch/machine.hpp"
#include "launch/options.hpp"

namespace accelerate::launch {

struct WorkerPlan {
  int64_t rank = 0;
  std::vector<std::string> command;  ///< program and arguments
  env::Variables environment;        ///< all of it, not an addition to ours

  bool operator==(const WorkerPlan&) const = default;
};

struct LaunchPlan {
  std::vector<WorkerPlan> workers;
  bool serve_mpi = false;  ///< the launcher is the workers' PMIx server

  bool operator==(const LaunchPlan&) const = default;
};

/// inherited   the launcher's own environment; what other launchers left in it does not reach the workers
/// port        where rank 0 will listen on 127.0.0.1
LaunchPlan plan(const LaunchOptions& options, const Machine& machine, const env::Variables& inherited, int64_t port);

/// Ranks that options ask for on this machine.
int64_t number_of_processes(const LaunchOptions& options, const Machine& machine);

}  // namespace accelerate::launch

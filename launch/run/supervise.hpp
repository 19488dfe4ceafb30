// SPDX-License-Identifier: Apache-2.0
// Runs a plan: starts its workers, passes output and signals on, stops all when one fails.
#pragma once

#include <chrono>

#include "launch/plan/plan.hpp"

namespace accelerate::launch {

struct SuperviseOptions {
  /// Between SIGTERM and SIGKILL for the workers left when one failed or the launcher was told to stop.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  /// Once told to stop: for whoever reads our output, after the end of the workers.
  std::chrono::milliseconds reader_grace = std::chrono::seconds(1);
  /// How long ranks that wait in MPI's start wait for one that stays away before the job is ended.
  std::chrono::milliseconds mpi_start = std::chrono::seconds(602);
  /// After the last end: when a line says which workers still run.
  std::chrono::milliseconds straggler = std::chrono::seconds(30);
  int out = 1;  ///< where the workers' stdout goes
  int err = 2;  ///< where their stderr and our messages go
};

/// Blocks until all workers have ended, nothing of their process groups is left and their output is written.
///
/// returns   0, or the exit code of the worker that failed first (128 + signal). SIGINT, SIGTERM, SIGHUP and SIGQUIT
/// are
///           passed on to the workers, a second one kills them; SIGUSR1 and SIGUSR2 are passed on and end nothing
/// Throws LaunchError when a worker cannot be started; those that were are stopped.
int supervise(const LaunchPlan& plan, const SuperviseOptions& options = {});

}  // namespace accelerate::launch

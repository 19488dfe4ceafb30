// SPDX-License-Identifier: Apache-2.0
// Runs a plan: starts its workers, passes output and signals on, stops all when one fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// Why a worker counts as failed; empty where it does not.
///
/// status   from waitpid
/// returns  "exit code 3", "signal 9 (killed)"
std::string describe(int status);

/// What a shell would see: the exit code, or 128 + signal.
int exit_code_of(int status);

struct SuperviseOptions {
  /// Between SIGTERM and SIGKILL for the workers left when one failed or the launcher was told to stop.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  /// How long ranks that wait in MPI's start wait for one that stays away before the job is ended.
  std::chrono::milliseconds mpi_start = std::chrono::seconds(602);
  /// After the last end: when a line says which workers still run.
  std::chrono::milliseconds straggler = std::chrono::seconds(30);
  int out = 1;  ///< where the workers' stdout goes
  int err = 2;  ///< where their stderr and our messages go
};

/// Blocks until all workers have ended and nothing of their process groups is left.
///
/// returns   0, or the exit code of the worker that failed first (128 + signal); SIGINT, SIGTERM, SIGHUP and SIGQUIT
/// are
///           passed on to the workers, a second one kills them; SIGUSR1 and SIGUSR2 are passed on and end nothing
/// Throws LaunchError when a worker cannot be started; those that were are stopped.
int supervise(const LaunchPlan& plan, const SuperviseOptions& options = {});

}  // namespace accelerate::launch

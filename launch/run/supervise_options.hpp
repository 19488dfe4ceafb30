// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "launch/plan/output_options.hpp"
#include "launch/run/restarts.hpp"

namespace accelerate::launch {

struct SuperviseOptions {
  /// Time between SIGTERM and SIGKILL for workers that remain after a failure or a request to stop.
  std::chrono::milliseconds grace = default_grace;
  /// After a request to stop: time for the reader of our output once the workers have ended. Also applies to the final
  /// messages of the launcher in every other case.
  std::chrono::milliseconds reader_grace = std::chrono::seconds(1);
  /// How long ranks that wait in MPI's start wait for one that stays away before the job is ended.
  std::chrono::milliseconds mpi_start = std::chrono::seconds(602);
  /// Time after the end of all other workers until a message names a worker that still runs.
  std::chrono::milliseconds straggler = std::chrono::seconds(30);
  /// The job ends if no rank that uses this library makes progress for this time. 0 disables hang detection.
  std::chrono::milliseconds hang{0};
  /// For all stacks that are taken then.
  std::chrono::milliseconds stacks = std::chrono::seconds(20);
  /// Exit code with which workers request a restart after they have saved. It is not a failure, and the other workers
  /// end in their own time. If 0, no such code exists.
  int resume_code = 0;
  RestartOptions restarts{};
  OutputOptions output{};
  int* told = nullptr;  ///< receives the signal that requested the end, if any
  /// socket to the process that combines all machines (hang_watch.hpp); -1 if this machine runs all ranks
  int hang_judge = -1;
  int failures = -1;  ///< pipe for the first failure (announce.hpp); -1 disables it
  int out = 1;        ///< where the workers' stdout goes
  int err = 2;        ///< where their stderr and our messages go
};

}  // namespace accelerate::launch

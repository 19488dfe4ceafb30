// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "launch/plan/output_options.hpp"
#include "launch/run/restart_policy.hpp"

namespace accelerate::launch {

struct SuperviseOptions {
  /// Time between SIGTERM and SIGKILL for workers that remain after a failure or a request to stop.
  std::chrono::milliseconds grace = kDefaultGrace;
  /// After a request to stop: time for the reader of our output once the workers have ended. Also applies to the final
  /// messages of the launcher in every other case.
  std::chrono::milliseconds reader_grace = std::chrono::seconds(1);
  /// Maximum time that ranks in MPI_Init wait for a missing rank before the job ends.
  std::chrono::milliseconds mpi_start = std::chrono::seconds(602);
  /// Time after the end of all other workers until a message names a worker that still runs.
  std::chrono::milliseconds straggler = std::chrono::seconds(30);
  /// The job ends if no rank that uses this library makes progress for this time. 0 disables hang detection.
  std::chrono::milliseconds hang{0};
  /// Maximum time for reading all stacks after a hang.
  std::chrono::milliseconds stacks = std::chrono::seconds(20);
  /// Exit code with which workers request a restart after they have saved. It is not a failure, and the other workers
  /// end in their own time. If 0, no such code exists.
  int resume_code = 0;
  RestartOptions restarts{};
  OutputOptions output{};
  int* termination_signal = nullptr;  ///< receives the signal that requested the end, if any
  /// Socket to the process that combines all machines (hang_monitor.hpp). If -1, this machine runs all ranks.
  int hang_detector = -1;
  int failures = -1;  ///< pipe for the first failure (failure_pipe.hpp); -1 disables it
  int out = 1;        ///< destination of the workers' stdout
  int err = 2;        ///< destination of the workers' stderr and of the launcher's messages
};

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "launch/plan/output_options.hpp"
#include "launch/run/restarts.hpp"

namespace accelerate::launch {

struct SuperviseOptions {
  /// Between SIGTERM and SIGKILL for the workers left when one failed or the launcher was told to stop.
  std::chrono::milliseconds grace = default_grace;
  /// Once told to stop: for whoever reads our output, after the end of the workers. For our own last words always.
  std::chrono::milliseconds reader_grace = std::chrono::seconds(1);
  /// How long ranks that wait in MPI's start wait for one that stays away before the job is ended.
  std::chrono::milliseconds mpi_start = std::chrono::seconds(602);
  /// After the end of all others: when a line says that one worker still runs.
  std::chrono::milliseconds straggler = std::chrono::seconds(30);
  /// When no rank that uses our library has moved for so long the job is ended. 0: never.
  std::chrono::milliseconds hang{0};
  /// For all stacks that are taken then.
  std::chrono::milliseconds stacks = std::chrono::seconds(20);
  /// Workers that end with it have saved and ask for another start: no failure, and the others end in their own time.
  /// 0: there is no such code.
  int resume_code = 0;
  RestartOptions restarts{};
  OutputOptions output{};
  int* told = nullptr;  ///< becomes the signal that asked for the end, if one did
  int hang_judge = -1;  ///< a socket to whoever knows the ranks of all machines (hang_watch.hpp); -1: these are all
  int failures = -1;    ///< where the first failure is announced at once (announce.hpp); -1: nowhere
  int out = 1;          ///< where the workers' stdout goes
  int err = 2;          ///< where their stderr and our messages go
};

}  // namespace accelerate::launch

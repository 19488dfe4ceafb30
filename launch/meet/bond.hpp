// SPDX-License-Identifier: Apache-2.0
// The launchers of several machines end together, and start again together.
#pragma once

#include <functional>
#include <optional>

#include "launch/meet/meeting.hpp"
#include "launch/run/restarts.hpp"

namespace accelerate::launch {

/// How the ranks of this machine ended.
struct WorkEnd {
  int exit_code = 0;
  bool was_told = false;  ///< a signal asked for the end
};

struct BondOptions {
  int resume_code = 0;  ///< with which ranks ask for another start: it ends no other machine's; 0: none
  int hang = -1;        ///< a socket to the guardian, which tells whether the ranks stand still (run/hang_watch.hpp)
  int failures = -1;    ///< where a failure here is announced (run/announce.hpp) while the others are still stopped
  /// Machine 0: what follows a failure.
  std::function<RestartDecision(const std::string& cause)> decide{};
  bool may_restart = false;  ///< the others: wait for what machine 0 decides
};

/// How the job ended.
struct Together {
  int exit_code = 0;  ///< 0 when all machines ended well, or resume_code; else of the first that failed
  std::optional<std::chrono::milliseconds> again{};  ///< all start again after so long
};

/// Runs the ranks of this machine. When those of another fail, or its launcher is lost, this process gets a SIGTERM, on
/// which the work has to stop its ranks and return. Once the work returns 0 waits for the other machines. Who failed
/// first is named on stderr.
///
/// work   the calling thread's signals are its own
Together run_together(Gathered gathered, const Hello& own, const BondOptions& options,
                      const std::function<WorkEnd()>& work);

}  // namespace accelerate::launch

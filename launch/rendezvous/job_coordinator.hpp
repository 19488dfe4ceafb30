// SPDX-License-Identifier: Apache-2.0
// Ends and restarts the launchers of several machines together.
#pragma once

#include <functional>
#include <optional>

#include "launch/rendezvous/rendezvous.hpp"
#include "launch/run/restart_policy.hpp"

namespace accelerate::launch {

/// How the ranks of this machine ended.
struct LocalResult {
  int exit_code = 0;
  bool was_signalled = false;  ///< a signal requested the end
};

struct JobCoordinatorOptions {
  int resume_code = 0;  ///< exit code with which ranks request a restart without ending other machines; 0 disables it
  int hang = -1;        ///< socket to the guardian, which reports hang status (run/hang_monitor.hpp)
  /// pipe on which a failure here is announced (run/failure_pipe.hpp) while the other ranks are still stopped
  int failures = -1;
  /// On machine 0: decides whether the job restarts after a failure.
  std::function<RestartDecision(const std::string& cause)> decide{};
  bool may_restart = false;  ///< on other machines: wait for the decision of machine 0
};

/// How the job ended.
struct JobResult {
  int exit_code = 0;  ///< 0 if all machines succeeded, or resume_code; otherwise the code of the first failure
  std::optional<std::chrono::milliseconds> again{};  ///< delay before all machines restart
};

/// Runs the ranks of this machine. If ranks of another machine fail, or if its launcher is lost, this process receives
/// SIGTERM, and `work` must then stop its ranks and return. After `work` returns 0, the function waits for the other
/// machines. The first failure is written to stderr.
///
/// \param work  Runs on the calling thread, which handles its own signals.
JobResult run_coordinated(RendezvousResult gathered, const JoinRequest& own, const JobCoordinatorOptions& options,
                          const std::function<LocalResult()>& work);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// What the launcher says when a worker failed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::launch {

/// How a worker ended: "exit code 3", "signal 9 (killed)".
///
/// status   from waitpid
std::string describe(int status);

/// What a shell would see: the exit code, or 128 + signal.
int exit_code_of(int status);

/// "2026-11-22 15:04:05", on this machine's clock and in its time zone.
std::string clock_time();

/// The failure that ends a job, and how the job stood then.
struct Failure {
  int64_t rank = 0;
  pid_t pid = -1;                       ///< -1: it is no worker of this machine that failed
  std::string cause{};                  ///< "exit code 3", "MPI_Abort(7)"
  int exit_code = 1;                    ///< the launcher's
  std::vector<int64_t> ended_before{};  ///< ranks that had ended with exit code 0
  std::vector<int64_t> suspended{};     ///< ranks that stood still (SIGSTOP), perhaps what this one waited for
  bool others_were_stopped = false;
  bool never_came = false;  ///< it did not end: the cause says to what it did not come
};

/// What is known at the end of the job.
struct JobEnd {
  /// What the workers are: "worker", a "machine" whose launcher has told the rest itself, or the one "mpirun" or
  /// "srun".
  std::string noun = "worker";
  std::string host{};
  size_t workers = 1;
  bool among_others = false;  ///< the only worker here, but others of its job print beside it
  int signal = 0;             ///< that was passed on to the workers; 0: none
  std::string time{};         ///< of the failure: "2026-11-22 15:04:05"
  std::string last_lines{};   ///< of the worker that failed; empty: it printed nothing
  std::string error{};        ///< what the worker said of its failure (error_files.hpp); empty: nothing
  std::optional<std::pair<int64_t, std::string>> earlier_error{};  ///< another rank's that is older
};

/// "accelerate_launch: worker 5 (gpu-b, pid 4121, 2026-11-22 15:04:05) ended first, signal 9 (killed); the others were
/// stopped. Its last lines follow." and these. An error is told once: lines that show it too are left out. Only who
/// ended before all others is said to have ended first. Pure.
std::string failure_report(const Failure& failure, const JobEnd& end);

}  // namespace accelerate::launch

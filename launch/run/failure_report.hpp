// SPDX-License-Identifier: Apache-2.0
// Text of the launcher's failure report.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::launch {

/// Returns how a worker ended: "exit code 3", "signal 9 (killed)".
///
/// \param status  Status from waitpid().
std::string wait_status_text(int status);

/// Exit code as in a shell: the exit code, or 128 + signal.
int exit_code_of(int status);

/// Returns "2026-11-22 15:04:05" in local time.
std::string clock_time();

/// The failure that ends a job, and the state of the other ranks at that time.
struct Failure {
  int64_t rank = 0;
  pid_t pid = -1;                       ///< -1 if the failure is not a worker of this machine
  std::string cause{};                  ///< "exit code 3", "MPI_Abort(7)"
  int exit_code = 1;                    ///< exit code of the launcher
  std::vector<int64_t> ended_before{};  ///< ranks that had ended with exit code 0
  std::vector<int64_t> suspended{};     ///< stopped ranks (SIGSTOP), for which the failed rank may have waited
  bool others_terminated = false;
  bool did_not_join = false;  ///< the rank did not end; the cause names the phase that it did not reach
};

/// Information at the end of the job.
struct JobEnd {
  /// Noun for the workers: "worker"; "machine" if its own launcher has already reported the details; or "mpirun" or
  /// "srun" for the single process that started all ranks.
  std::string noun = "worker";
  std::string host{};
  size_t workers = 1;
  bool is_one_of_many = false;  ///< true if this is the only worker here, but other launchers of the job print too
  int signal = 0;               ///< signal that was forwarded to the workers; 0 if none
  std::string time{};           ///< time of the failure: "2026-11-22 15:04:05"
  std::string last_lines{};     ///< last output of the failed worker; may be empty
  std::string error{};          ///< the worker's own error text (error_files.hpp); empty if it wrote none
  std::optional<std::pair<int64_t, std::string>> earlier_error{};  ///< older error of another rank
};

/// Returns the report: "accelerate_launch: worker 5 (gpu-b, pid 4121, 2026-11-22 15:04:05) ended first, signal 9
/// (killed); the others were stopped. Its last lines follow.", then those lines. The error text appears once: last
/// lines that repeat it are omitted. A rank is called first only if it ended before all others. Pure function.
std::string failure_report(const Failure& failure, const JobEnd& end);

}  // namespace accelerate::launch

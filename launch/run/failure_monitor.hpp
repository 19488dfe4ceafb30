// SPDX-License-Identifier: Apache-2.0
// Detects the first failed worker and the cause: it ended with an error, left MPI, did not join MPI, or all ranks hang.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/plan/plan.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/failure_report.hpp"
#include "launch/run/hang_monitor.hpp"
#include "launch/run/supervise_options.hpp"
#include "launch/run/worker_output.hpp"
#include "launch/run/worker_processes.hpp"

namespace accelerate::launch {

class FailureMonitor {
 public:
  using Clock = WorkerProcesses::Clock;

  /// The first failure stops the workers and is reported through the pipe that the options name.
  FailureMonitor(const LaunchPlan& plan, const SuperviseOptions& options, WorkerProcesses& lifetimes, Output& output)
      : plan_(plan),
        options_(options),
        worker_processes_(lifetimes),
        output_(output),
        hang_(options.hang, options.hang_detector) {}

  /// Also uses the state of the MPI server.
  void listen_to(MpiServer& server) { mpi_ = &server; }
  /// Call before the worker is started. Sets up its heartbeat in this folder.
  void add(WorkerPlan& planned, const std::string& folder) { hang_.add(planned, folder); }

  /// Readable when a worker joins or leaves MPI. Returns -1 if no MPI server is attached.
  [[nodiscard]] int wake_fd() const { return mpi_ != nullptr && !failure_ ? mpi_->wake_fd() : -1; }
  /// Readable when check_verdict() must run. Returns -1 if no verdict can arrive.
  [[nodiscard]] int judge_fd() const { return failure_ ? -1 : hang_.detector_fd(); }
  /// Time at which poll() must run, or nothing after a failure.
  [[nodiscard]] std::optional<Clock::time_point> deadline(bool is_stopping) const;

  /// Detects MPI_Abort, which is visible before the calling worker ends.
  void check_abort();
  /// Detects a hang of all machines. Runs before the SIGTERM that follows the end of another machine is handled.
  void check_verdict();
  /// Records the end of a worker.
  void mark_finished(const Worker& worker);
  /// Detects failures without an exit: missing ranks, remaining ranks and hanging ranks.
  ///
  /// \param is_stopping  True after a termination signal was forwarded. A late rank is then not a failure.
  void poll(bool is_stopping);

  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  /// True if no worker failed and at least one exited with the resume code.
  [[nodiscard]] bool restart_requested() const noexcept { return restart_requested_ && !failure_; }
  /// Returns the failure report, or "" if no worker failed.
  ///
  /// \param termination_signal  Signal that was forwarded to the workers, or 0.
  /// \param folder              Folder that contains the workers' error files.
  [[nodiscard]] std::string report(int termination_signal, const std::string& folder) const;

 private:
  void check_start();
  void report_straggler();
  void check_hang();
  void kill_stalled_ranks(const std::vector<StalledRank>& ranks, const std::string& cause);
  void fail(const Worker& worker, const std::string& cause, int exit_code);
  [[nodiscard]] const Worker& worker_of(int64_t rank) const;
  [[nodiscard]] std::string host_of(size_t worker) const;
  [[nodiscard]] std::string waited_for_ranks_text(const Worker& worker) const;
  [[nodiscard]] std::vector<int64_t> other_exited_ranks(const Worker& failed) const;
  void add_errors(JobEnd& end, const std::string& folder) const;

  const LaunchPlan& plan_;
  const SuperviseOptions& options_;
  WorkerProcesses& worker_processes_;
  Output& output_;
  MpiServer* mpi_ = nullptr;
  HangMonitor hang_;
  bool restart_requested_ = false;
  std::optional<Failure> failure_;
  std::string failed_at_;
  std::optional<Clock::time_point> start_deadline_;
  std::optional<Clock::time_point> straggler_at_;  ///< deadline of the last running worker
};

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Detects the first failed worker and the cause: it ended with an error, left MPI, did not join MPI, or all ranks hang.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/plan/plan.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/failure_report.hpp"
#include "launch/run/hang_watch.hpp"
#include "launch/run/lifetimes.hpp"
#include "launch/run/output.hpp"
#include "launch/run/supervise_options.hpp"

namespace accelerate::launch {

class FailureWatch {
 public:
  using Clock = Lifetimes::Clock;

  /// The first failure stops the workers and is reported through the pipe that the options name.
  FailureWatch(const LaunchPlan& plan, const SuperviseOptions& options, Lifetimes& lifetimes, Output& output)
      : plan_(plan),
        options_(options),
        lifetimes_(lifetimes),
        output_(output),
        hang_(options.hang, options.hang_judge) {}

  /// Also uses the state of the MPI server.
  void listen_to(MpiServer& server) { mpi_ = &server; }
  /// Call before the worker is started. Sets up its heartbeat in this folder.
  void add(WorkerPlan& planned, const std::string& folder) { hang_.add(planned, folder); }

  /// Readable when a worker joins or leaves MPI. Returns -1 if no MPI server is attached.
  [[nodiscard]] int wake_fd() const { return mpi_ != nullptr && !failure_ ? mpi_->wake_fd() : -1; }
  /// Readable when look_for_verdict() must run. Returns -1 if no verdict can arrive.
  [[nodiscard]] int judge_fd() const { return failure_ ? -1 : hang_.judge(); }
  /// Time at which look(told) must run, or nothing after a failure.
  [[nodiscard]] std::optional<Clock::time_point> deadline(bool told) const;

  /// Detects MPI_Abort, which is visible before the calling worker ends.
  void look_for_abort();
  /// Detects a hang of all machines. Runs before the SIGTERM that follows the end of another machine is handled.
  void look_for_verdict();
  /// Records the end of a worker.
  void take_leave_of(const Worker& worker);
  /// Detects failures without an exit: missing ranks, remaining ranks and hanging ranks.
  ///
  /// \param told  The workers were asked to end, so a late rank is not a failure.
  void look(bool told);

  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  /// True if no worker failed and at least one exited with the resume code.
  [[nodiscard]] bool asks_for_another() const noexcept { return asks_ && !failure_; }
  /// Returns the failure report, or "" if no worker failed.
  ///
  /// \param told    Signal that was forwarded to the workers, or 0.
  /// \param folder  Folder that contains the workers' error files.
  [[nodiscard]] std::string report(int told, const std::string& folder) const;

 private:
  void look_at_start();
  void name_straggler();
  void look_for_hang();
  void end_still_ranks(const std::vector<StillRank>& ranks, const std::string& cause);
  void fail(const Worker& worker, const std::string& cause, int exit_code);
  [[nodiscard]] const Worker& worker_of(int64_t rank) const;
  [[nodiscard]] std::string host_of(size_t worker) const;
  [[nodiscard]] std::string waited_for_whom(const Worker& worker) const;
  [[nodiscard]] std::vector<int64_t> ended_besides(const Worker& failed) const;
  void add_errors(JobEnd& end, const std::string& folder) const;

  const LaunchPlan& plan_;
  const SuperviseOptions& options_;
  Lifetimes& lifetimes_;
  Output& output_;
  MpiServer* mpi_ = nullptr;
  HangWatch hang_;
  bool asks_ = false;
  std::optional<Failure> failure_;
  std::string failed_at_;
  std::optional<Clock::time_point> start_deadline_;
  std::optional<Clock::time_point> straggler_at_;  ///< deadline of the last running worker
};

}  // namespace accelerate::launch

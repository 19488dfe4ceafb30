// SPDX-License-Identifier: Apache-2.0
// Whether a worker failed, which was the first, and why: it ended badly, left MPI, never came to it, or all stand
// still.
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

  /// The first failure stops the workers, and is announced where the options say.
  FailureWatch(const LaunchPlan& plan, const SuperviseOptions& options, Lifetimes& lifetimes, Output& output)
      : plan_(plan),
        options_(options),
        lifetimes_(lifetimes),
        output_(output),
        hang_(options.hang, options.hang_judge) {}

  /// What MPI's server knows counts too.
  void listen_to(MpiServer& server) { mpi_ = &server; }
  /// Before the worker is started: where it shows itself.
  void add(WorkerPlan& planned, const std::string& folder) { hang_.add(planned, folder); }

  /// Readable when a worker came to MPI or left it; -1: there is nothing to hear.
  [[nodiscard]] int wake_fd() const { return mpi_ != nullptr && !failure_ ? mpi_->wake_fd() : -1; }
  /// Readable when look_for_verdict() has something to do; -1: never.
  [[nodiscard]] int judge_fd() const { return failure_ ? -1 : hang_.judge(); }
  /// When look(told) has something to do; never, once there is a failure.
  [[nodiscard]] std::optional<Clock::time_point> deadline(bool told) const;

  /// MPI_Abort comes before the end of the worker that called it.
  void look_for_abort();
  /// The ranks of all machines stand still; comes before the signal with which another machine's end tells ours to.
  void look_for_verdict();
  /// A worker has ended.
  void take_leave_of(const Worker& worker);
  /// What does not show by an end: who stays away, who still runs, who stands still.
  ///
  /// told   the workers were told to end: who is late then is no failure
  void look(bool told);

  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  /// No worker failed, and one ended with the code that asks for another start.
  [[nodiscard]] bool asks_for_another() const noexcept { return asks_ && !failure_; }
  /// What is said at the end; "" where none failed.
  ///
  /// told     the signal that was passed on to the workers; 0: none
  /// folder   where workers wrote of their failures
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
  std::optional<Clock::time_point> straggler_at_;  ///< of the last one that runs
};

}  // namespace accelerate::launch

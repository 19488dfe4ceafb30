// SPDX-License-Identifier: Apache-2.0
#include "launch/run/failure_monitor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "accelerate/base/error.hpp"
#include "launch/run/error_files.hpp"
#include "launch/run/failure_pipe.hpp"
#include "launch/run/mpi_start.hpp"
#include "launch/run/process_activity.hpp"

namespace accelerate::launch {
namespace {

double seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

/// Noun for the workers of this runner.
std::string noun_of(Runner runner) {
  if (runner == Runner::ssh) return "machine";
  if (runner == Runner::mpirun) return "mpirun";
  return runner == Runner::srun ? "srun" : "worker";
}

}  // namespace

std::optional<FailureMonitor::Clock::time_point> FailureMonitor::deadline(bool is_stopping) const {
  if (failure_) return std::nullopt;
  std::optional<Clock::time_point> first = start_deadline_;
  for (const auto& each : {straggler_at_, hang_.deadline()}) {
    if (each && !is_stopping && (!first || *each < *first)) first = each;
  }
  return first;
}

void FailureMonitor::mark_finished(const Worker& worker) {
  straggler_at_.reset();
  if (worker_processes_.running() == 1) straggler_at_ = Clock::now() + options_.straggler;
  if (failure_) return;
  const int code = exit_code_of(*worker.status);
  if (options_.resume_code != 0 && code == options_.resume_code) {
    restart_requested_ = true;  // the library calls MPI_Finalize only before exit code 0
  } else if (code != 0) {
    fail(worker, wait_status_text(*worker.status) + waited_for_ranks_text(worker), code);
  } else if (mpi_ != nullptr && mpi_->not_finalized(worker.rank)) {
    fail(worker, "exit code 0 without MPI_Finalize", 1);  // the other ranks would wait for ever
  }
}

void FailureMonitor::poll(bool is_stopping) {
  if (mpi_ != nullptr && !failure_) check_start();
  if (!failure_ && !is_stopping) report_straggler();
  if (!failure_ && !is_stopping) check_hang();
}

/// MPI_Init waits for all ranks. A rank that ended before MPI_Init can never join, and the wait for a missing rank is
/// limited by the options.
void FailureMonitor::check_start() {
  const auto absent = awaited_in_mpi_init(mpi_init_status(worker_processes_.workers(), *mpi_));
  const auto ended = std::find_if(absent.begin(), absent.end(), [](const auto& each) { return !each.running; });
  if (absent.empty()) return start_deadline_.reset();
  if (ended != absent.end()) {
    return fail(worker_of(ended->rank), "exit code 0 before MPI_Init, where others wait for it", 1);
  }
  const auto now = Clock::now();
  if (!start_deadline_) start_deadline_ = now + options_.mpi_start;
  if (now < *start_deadline_) return;
  start_deadline_.reset();
  fail(worker_of(absent.front().rank),
       fmt::format("{} did not reach MPI_Init within {:g} s, where others wait", names(absent),
                   seconds_of(options_.mpi_start)),
       1);
  failure_->did_not_join = true;
}

/// A worker that timed out in MPI_Init is not the cause of the failure.
std::string FailureMonitor::waited_for_ranks_text(const Worker& worker) const {
  if (mpi_ == nullptr || !mpi_->not_finalized(worker.rank)) return "";
  const auto absent = not_in_mpi_init(mpi_init_status(worker_processes_.workers(), *mpi_));
  return absent.empty() ? "" : fmt::format(" in MPI_Init, which {} did not reach", names(absent));
}

void FailureMonitor::report_straggler() {
  if (!straggler_at_ || Clock::now() < *straggler_at_) return;
  straggler_at_.reset();
  const auto& workers = worker_processes_.workers();
  const auto last = std::find_if(workers.begin(), workers.end(), [](const Worker& each) { return each.running(); });
  const auto number = static_cast<size_t>(last - workers.begin());
  output_.write_message(fmt::format(
      "accelerate_launch: {} {} ({}, pid {}) still runs {:g} s after the others ended; it {}\n", noun_of(plan_.runner),
      last->rank, host_of(number), last->pid, seconds_of(options_.straggler), process_activity(last->pid)));
}

void FailureMonitor::check_hang() {
  const auto ranks = hang_.poll(worker_processes_.workers());
  if (ranks.empty()) return;
  const bool alone = plan_.runner == Runner::task;
  kill_stalled_ranks(ranks, alone ? lone_hang_cause(ranks.front(), options_.hang) : hang_cause(ranks, options_.hang));
}

void FailureMonitor::check_verdict() {
  if (failure_) return;
  const auto cause = hang_.verdict();
  const auto ranks = hang_.running(worker_processes_.workers());
  if (cause && !ranks.empty()) kill_stalled_ranks(ranks, *cause);
}

void FailureMonitor::kill_stalled_ranks(const std::vector<StalledRank>& ranks, const std::string& cause) {
  output_.write_message(hang_lines(ranks));
  output_.write_message(stacks_of_all(ranks, options_.stacks));
  const bool sees_all = hang_.detector_fd() < 0;
  const auto missing = sees_all ? missing_ranks(ranks) : idle_ranks(ranks);
  fail(worker_of(missing.empty() ? ranks.front().rank : missing.front()), cause, kExitCodeOfHang);
  failure_->did_not_join = true;
  if (missing.empty() && !sees_all) failure_->pid = -1;  // the cause may be a rank of another machine
}

void FailureMonitor::check_abort() {
  if (mpi_ == nullptr || failure_) return;
  mpi_->clear_wakeup();
  const auto abort = mpi_->aborted();
  for (const auto& worker : worker_processes_.workers()) {
    if (!abort || worker.rank != abort->rank) continue;
    const int code = abort->code & 0xff;
    fail(worker, fmt::format("MPI_Abort({})", abort->code), code == 0 ? 1 : code);
  }
}

const Worker& FailureMonitor::worker_of(int64_t rank) const {
  const auto& workers = worker_processes_.workers();
  return *std::find_if(workers.begin(), workers.end(), [&](const Worker& each) { return each.rank == rank; });
}

void FailureMonitor::fail(const Worker& worker, const std::string& cause, int exit_code) {
  failed_at_ = clock_time();
  failure_ = Failure{.rank = worker.rank,
                     .pid = worker.pid,
                     .cause = cause,
                     .exit_code = exit_code,
                     .ended_before = other_exited_ranks(worker),
                     .suspended = worker_processes_.suspended(),
                     .others_terminated = worker_processes_.running() > 0 && !worker_processes_.stopping()};
  write_failure_notice(*failure_, worker_processes_.stopping(), options_.failures);
  if (failure_->others_terminated) worker_processes_.stop(SIGTERM);
}

std::string FailureMonitor::host_of(size_t worker) const {
  const std::string& host = plan_.workers.at(worker).host;
  return host.empty() ? base::host_name() : host;
}

std::vector<int64_t> FailureMonitor::other_exited_ranks(const Worker& failed) const {
  std::vector<int64_t> ranks;
  for (const auto& worker : worker_processes_.workers()) {
    if (!worker.running() && worker.rank != failed.rank) ranks.push_back(worker.rank);
  }
  return ranks;
}

std::string FailureMonitor::report(int termination_signal, const std::string& folder) const {
  if (!failure_) return "";
  const bool is_task = plan_.runner == Runner::task;
  // srun and mpirun stop all ranks when one fails. The failed rank is reported on the machine where it ran.
  if (is_task && termination_signal != 0 && failure_->exit_code == 128 + termination_signal) return "";
  const auto& workers = worker_processes_.workers();
  const auto failed = static_cast<size_t>(&worker_of(failure_->rank) - workers.data());
  JobEnd end{.noun = noun_of(plan_.runner),
             .host = host_of(failed),
             .workers = workers.size(),
             .is_one_of_many = is_task,
             .signal = termination_signal,
             .time = failed_at_,
             .last_lines = output_.last_lines(failed)};
  add_errors(end, folder);
  return failure_report(*failure_, end);
}

void FailureMonitor::add_errors(JobEnd& end, const std::string& folder) const {
  std::vector<std::pair<int64_t, base::ErrorRecord>> notes;
  for (const auto& worker : worker_processes_.workers()) {
    if (auto note = read_error_record(folder, worker.rank)) notes.emplace_back(worker.rank, std::move(*note));
  }
  for (const auto& [rank, note] : notes) {
    if (rank == failure_->rank) end.error = note.text;
  }
  if (const auto earlier = earlier_error(notes, failure_->rank)) {
    end.earlier_error = std::pair(earlier->first, earlier->second.text);
  }
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "launch/run/generation.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/announce.hpp"
#include "launch/run/error_files.hpp"
#include "launch/run/failure_report.hpp"
#include "launch/run/given.hpp"
#include "launch/run/hang_watch.hpp"
#include "launch/run/lifetimes.hpp"
#include "launch/run/log_files.hpp"
#include "launch/run/mpi_start.hpp"
#include "launch/run/open_files.hpp"
#include "launch/run/orphans.hpp"
#include "launch/run/output.hpp"
#include "launch/run/signals.hpp"
#include "launch/run/spawn.hpp"
#include "launch/run/straggler.hpp"

namespace accelerate::launch {
namespace {

using Clock = Lifetimes::Clock;

/// The sooner of two waits in milliseconds, of which -1 is for ever.
int sooner(int one, int other) {
  if (one < 0 || other < 0) return std::max(one, other);
  return std::min(one, other);
}

class Generation {
 public:
  Generation(const SuperviseOptions& options, const JobFolders& folders, int launcher_gone, size_t workers)
      : options_(options),
        folders_(folders),
        launcher_gone_(launcher_gone),
        open_files_(static_cast<int64_t>(workers), !options.output.log_dir.empty()),
        output_(options.out, options.err, options.output.labels),
        lifetimes_(options.grace),
        hang_(options.hang) {}

  Outcome run(const LaunchPlan& plan) {
    try {
      start(plan);
    } catch (...) {
      lifetimes_.tell(SIGKILL);
      end_all();
      throw;
    }
    end_all();
    report();
    write_the_rest();
    if (interrupted_ != 0) return {.exit_code = 128 + interrupted_};
    if (!failure_) return {};
    return {.exit_code = failure_->exit_code, .cause = told_ == 0 ? failure_->cause : ""};
  }

 private:
  void start(const LaunchPlan& plan) {
    if (plan.workers.empty()) return;
    const auto& first = plan.workers.front();
    const std::string program = find_program(first.command.front(), first.environment);
    if (plan.serve_mpi) {
      mpi_ = &serve_mpi(static_cast<int64_t>(plan.workers.size()), folders_.temporary.path(), folders_.shared_memory());
    }
    const auto inherited = env::current_variables();
    for (auto planned : plan.workers) {
      if (mpi_) planned.environment.merge(mpi_->variables(planned.rank));
      hang_.add(planned, folders_.temporary.path());
      planned.environment["TORCHELASTIC_ERROR_FILE"] = error_file(folders_.temporary.path(), planned.rank);
      OutputWay way = way_of(planned, static_cast<int64_t>(lifetimes_.workers().size()));
      Process process = spawn(program, planned, open_files_.before());
      lifetimes_.add(planned.rank, process.pid);
      output_.add(std::move(process.out), std::move(process.err), std::move(way));
      if (options_.output.debug) output_.say(what_it_was_given(planned, process.pid, inherited));
    }
  }

  [[nodiscard]] OutputWay way_of(const WorkerPlan& planned, int64_t local_rank) const {
    const auto& output = options_.output;
    OutputWay way{.rank = planned.rank};
    if (!output.log_dir.empty()) {
      const auto restart = env::find(planned.environment, "TORCHELASTIC_RESTART_COUNT").value_or("0");
      way.log = open_log(output.log_dir, planned.rank, fmt::format("restart {}, {}", restart, clock_time()));
    }
    for (size_t stream = 0; stream < 2; ++stream) {
      way.to_log.at(stream) = goes_to_log(output, local_rank, stream);
      way.to_console.at(stream) = is_shown(output, local_rank, stream);
    }
    return way;
  }

  /// Until no worker runs and nothing of theirs lives.
  void end_all() {
    while (lifetimes_.running() > 0) step();
    if (!orphans_.living().empty()) {
      lifetimes_.stop(SIGTERM);  // as long as the grace for the workers lasts, where there was one
      orphans_.tell(SIGTERM);
    }
    while (!orphans_.living().empty() && !lifetimes_.grace_is_over()) step();
    output_.say(orphans_.end());
    output_.take_the_rest();
  }

  /// Waits for output, a reader, a signal or the next deadline, and deals with it.
  void step() {
    std::vector<pollfd> waits{{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                              {.fd = mpi_ && !failure_ ? mpi_->wake_fd() : -1, .events = POLLIN, .revents = 0},
                              {.fd = abandoned_ ? -1 : launcher_gone_, .events = POLLIN, .revents = 0}};
    output_.watch(waits);
    poll(waits.data(), waits.size(), patience_ms());
    output_.serve(waits);
    if (waits[2].revents != 0) go_on_alone();
    if (mpi_ && !failure_) look_for_abort();
    while (const auto signal = signals_.next()) hear(*signal);
    if (mpi_ && !failure_) look_at_start();
    if (!failure_ && told_ == 0) name_stragglers();
    if (!failure_ && told_ == 0) look_for_hang();
    lifetimes_.kill_when_due();
  }

  [[nodiscard]] int patience_ms() const {
    int patience = sooner(output_.patience_ms(), lifetimes_.patience_ms());
    for (const auto& deadline : {start_deadline_, stragglers_at_, hang_.deadline()}) {
      if (!deadline) continue;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - Clock::now()).count();
      patience = sooner(patience, static_cast<int>(std::clamp<int64_t>(left + 1, 1, 60'000)));
    }
    return patience;
  }

  void hear(const Signal& signal) {
    if (signal.number == SIGCHLD) {
      lifetimes_.reap(signal.sender, [this](const Worker& worker) { take_leave_of(worker); });
    } else if (is_notice(signal.number)) {
      lifetimes_.tell(signal.number);
    } else if (told_ != 0) {
      lifetimes_.tell(SIGKILL);
    } else {
      told_ = signal.number;
      output_.hurry();
      lifetimes_.stop(signal.number);
    }
  }

  /// The launcher was killed: nobody else will end the workers, and remove what it made.
  void go_on_alone() {
    abandoned_ = true;
    output_.say("accelerate_launch: the launcher was killed; the ranks are told to end\n");
    if (told_ == 0) told_ = SIGTERM;
    output_.hurry();
    lifetimes_.stop(SIGTERM);
  }

  void take_leave_of(const Worker& worker) {
    stragglers_at_ = Clock::now() + options_.straggler;
    if (failure_) return;
    if (const int code = exit_code_of(*worker.status); code != 0) {
      fail(worker, describe(*worker.status) + waited_for_whom(worker), code);
    } else if (mpi_ && mpi_->not_finalized(worker.rank)) {
      fail(worker, "exit code 0 without MPI_Finalize", 1);  // the others would wait for it for ever
    }
  }

  /// In MPI's start all wait for all: one that ended before it never comes, one that stays away is waited for so long
  /// and no longer.
  void look_at_start() {
    const auto absent = awaited(at_mpi_start(lifetimes_.workers(), *mpi_));
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
         fmt::format("{} not come to MPI_Init within {:g} s, where others wait", names(absent),
                     std::chrono::duration<double>(options_.mpi_start).count()),
         1);
    failure_->never_came = true;
  }

  [[nodiscard]] const Worker& worker_of(int64_t rank) const {
    const auto& workers = lifetimes_.workers();
    return *std::find_if(workers.begin(), workers.end(), [&](const Worker& each) { return each.rank == rank; });
  }

  /// A worker that gave up in MPI's start is not the cause of it.
  [[nodiscard]] std::string waited_for_whom(const Worker& worker) const {
    if (!mpi_ || !mpi_->not_finalized(worker.rank)) return "";
    const auto absent = absent_of(at_mpi_start(lifetimes_.workers(), *mpi_));
    return absent.empty() ? "" : fmt::format(" in MPI_Init, to which {} not come", names(absent));
  }

  void name_stragglers() {
    if (!stragglers_at_ || Clock::now() < *stragglers_at_) return;
    stragglers_at_.reset();
    for (const auto& worker : lifetimes_.workers()) {
      if (!worker.running()) continue;
      output_.say(
          fmt::format("accelerate_launch: worker {} ({}, pid {}) still runs {:g} s after the others ended; it {}\n",
                      worker.rank, base::host_name(), worker.pid,
                      std::chrono::duration<double>(options_.straggler).count(), what_it_does(worker.pid)));
    }
  }

  void look_for_hang() {
    const auto ranks = hang_.look(lifetimes_.workers());
    if (ranks.empty()) return;
    output_.say(hang_story(ranks, options_.stacks));
    const auto missing = missing_ranks(ranks);
    constexpr int as_timeout = 124;  // of coreutils
    fail(worker_of(missing.empty() ? ranks.front().rank : missing.front()), hang_cause(ranks, options_.hang),
         as_timeout);
    failure_->never_came = true;
  }

  void look_for_abort() {
    mpi_->heard();
    const auto abort = mpi_->aborted();
    for (const auto& worker : lifetimes_.workers()) {
      if (!abort || worker.rank != abort->rank) continue;
      const int code = abort->code & 0xff;
      fail(worker, fmt::format("MPI_Abort({})", abort->code), code == 0 ? 1 : code);
    }
  }

  void fail(const Worker& worker, const std::string& cause, int exit_code) {
    failed_at_ = clock_time();
    failure_ = Failure{.rank = worker.rank,
                       .pid = worker.pid,
                       .cause = cause,
                       .exit_code = exit_code,
                       .ended_before = ended_besides(worker),
                       .suspended = lifetimes_.suspended(),
                       .others_were_stopped = lifetimes_.running() > 0 && !lifetimes_.stopping()};
    announce(*failure_, options_.failures);
    if (failure_->others_were_stopped) lifetimes_.stop(SIGTERM);
  }

  [[nodiscard]] std::vector<int64_t> ended_besides(const Worker& failed) const {
    std::vector<int64_t> ranks;
    for (const auto& worker : lifetimes_.workers()) {
      if (!worker.running() && worker.rank != failed.rank) ranks.push_back(worker.rank);
    }
    return ranks;
  }

  void report() {
    if (!failure_) return;
    const auto& workers = lifetimes_.workers();
    const auto failed = static_cast<size_t>(&worker_of(failure_->rank) - workers.data());
    JobEnd end{.host = base::host_name(),
               .workers = workers.size(),
               .signal = told_,
               .time = failed_at_,
               .last_lines = output_.last_lines(failed)};
    add_errors(end);
    output_.say(failure_report(*failure_, end));
  }

  void add_errors(JobEnd& end) const {
    std::vector<std::pair<int64_t, base::ErrorNote>> notes;
    for (const auto& worker : lifetimes_.workers()) {
      if (auto note = read_error_note(folders_.temporary.path(), worker.rank))
        notes.emplace_back(worker.rank, std::move(*note));
    }
    for (const auto& [rank, note] : notes) {
      if (rank == failure_->rank) end.error = note.text;
    }
    if (const auto earlier = earlier_error(notes, failure_->rank)) {
      end.earlier_error = std::pair(earlier->first, earlier->second.text);
    }
  }

  /// A slow reader gets all of it, unless we are told to stop.
  void write_the_rest() {
    std::optional<Clock::time_point> until;
    if (told_ != 0) until = Clock::now() + options_.reader_grace;
    while (!output_.flushed() && interrupted_ == 0 && (!until || Clock::now() < *until)) {
      std::vector<pollfd> waits{{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                                {.fd = launcher_gone_, .events = POLLIN, .revents = 0}};
      output_.watch(waits);
      poll(waits.data(), waits.size(), until ? 10 : -1);
      output_.serve(waits);
      if (waits[1].revents != 0) interrupted_ = SIGTERM;
      while (const auto signal = signals_.next()) {
        if (signal->number != SIGCHLD && !is_notice(signal->number)) interrupted_ = signal->number;
      }
    }
    output_.give_up();
  }

  SuperviseOptions options_;
  const JobFolders& folders_;
  int launcher_gone_;
  bool abandoned_ = false;
  OpenFiles open_files_;
  Signals signals_;  // before the server: its threads inherit what is blocked
  MpiServer* mpi_ = nullptr;
  Output output_;
  Lifetimes lifetimes_;
  Orphans orphans_;
  std::optional<Failure> failure_;
  std::string failed_at_;
  std::optional<Clock::time_point> start_deadline_;
  std::optional<Clock::time_point> stragglers_at_;
  HangWatch hang_;
  int told_ = 0;         // the signal that we passed on
  int interrupted_ = 0;  // the one that ended our waiting for a reader
};

}  // namespace

Outcome run_generation(const LaunchPlan& plan, const SuperviseOptions& options, const JobFolders& folders,
                       int launcher_gone) {
  return Generation(options, folders, launcher_gone, plan.workers.size()).run(plan);
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "launch/run/worker_group.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/env/parse.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/error_files.hpp"
#include "launch/run/failure_monitor.hpp"
#include "launch/run/failure_report.hpp"
#include "launch/run/file_limit.hpp"
#include "launch/run/launch_trace.hpp"
#include "launch/run/log_files.hpp"
#include "launch/run/mpirun_files.hpp"
#include "launch/run/orphans.hpp"
#include "launch/run/signals.hpp"
#include "launch/run/spawn.hpp"
#include "launch/run/worker_output.hpp"
#include "launch/run/worker_processes.hpp"

namespace accelerate::launch {
namespace {

using Clock = WorkerProcesses::Clock;

constexpr std::chrono::milliseconds broadcast_signal_delay(500);

/// Minimum of two poll() timeouts in milliseconds, where -1 is infinite.
int sooner(int one, int other) {
  if (one < 0 || other < 0) return std::max(one, other);
  return std::min(one, other);
}

class WorkerGroup {
 public:
  WorkerGroup(const LaunchPlan& plan, const SuperviseOptions& options, const JobFolders& folders, int launcher_gone,
              base::FileDescriptor input)
      : plan_(plan),
        options_(options),
        folders_(folders),
        launcher_gone_(launcher_gone),
        input_(std::move(input)),
        open_files_(static_cast<int64_t>(plan.workers.size()), !options.output.log_dir.empty()),
        output_(options.out, options.err, options.output.labels),
        worker_processes_(options.grace),
        watch_(plan, options, worker_processes_, output_) {}

  AttemptResult run() {
    try {
      start();
    } catch (...) {
      worker_processes_.send_signal(SIGKILL);
      end_all();
      throw;
    }
    end_all();
    wait_for_broadcast_signal();
    output_.write_message(watch_.report(forwarded_signal_, folders_.temporary.path()));
    flush_remaining_output();
    return outcome();
  }

 private:
  void start() {
    if (plan_.workers.empty()) return;
    const auto& first = plan_.workers.front();
    const std::string program = find_program(first.command.front(), first.environment);
    MpiServer* mpi = nullptr;
    if (plan_.serve_mpi) {
      mpi = &serve_mpi(static_cast<int64_t>(plan_.workers.size()), folders_.temporary.path(), folders_.shared_memory());
      watch_.listen_to(*mpi);
    }
    const auto inherited = env::current_variables();
    for (auto planned : plan_.workers) {
      if (mpi != nullptr) planned.environment.merge(mpi->variables(planned.rank));
      // An mpirun that is killed cannot remove its files, so they are in this folder.
      if (plan_.runner == Runner::mpirun && folders_.shared) {
        planned.environment.try_emplace("OMPI_MCA_btl_vader_backing_directory", folders_.shared_memory());
      }
      watch_.add(planned, folders_.temporary.path());
      // srun and mpirun would pass the same file to all their ranks, and the folder does not exist on other hosts. The
      // per-rank wrapper there sets a separate file for each rank.
      planned.environment.erase("TORCHELASTIC_ERROR_FILE");
      if (plan_.runner != Runner::srun && plan_.runner != Runner::mpirun) {
        planned.environment["TORCHELASTIC_ERROR_FILE"] = error_file(folders_.temporary.path(), planned.rank);
      }
      OutputRouting way = routing_of(planned);
      Process process = spawn(program, planned, open_files_.before(), input_.get());
      worker_processes_.add(planned.rank, process.pid);
      output_.add(std::move(process.out), std::move(process.err), std::move(way));
      if (options_.output.debug) output_.write_message(launch_trace(planned, process.pid, inherited));
    }
    input_.reset();  // must only be open in rank 0, so that its end is detected
  }

  [[nodiscard]] OutputRouting routing_of(const WorkerPlan& planned) const {
    const auto& output = options_.output;
    OutputRouting way{.rank = planned.rank, .reports_failures = plan_.runner == Runner::srun};
    if (!output.log_dir.empty()) {
      const auto restart = env::find(planned.environment, "TORCHELASTIC_RESTART_COUNT").value_or("0");
      way.log = open_log(output.log_dir, planned.rank, fmt::format("restart {}, {}", restart, clock_time()));
    }
    for (size_t stream = 0; stream < 2; ++stream) {
      way.to_log.at(stream) = goes_to_log(output, planned.local_rank, stream);
      way.to_console.at(stream) = is_shown(output, planned.local_rank, stream);
    }
    return way;
  }

  /// First failure that a per-rank wrapper reported, because srun exits with the highest code of all ranks.
  [[nodiscard]] std::optional<ReportedFailure> reported_by_rank() const {
    const bool failed = watch_.failure() || watch_.restart_requested();
    return failed && plan_.runner == Runner::srun ? output_.reported_failure(0) : std::nullopt;
  }

  /// If ranks may request a restart, srun does not stop the other ranks when one ends, whatever its exit code
  /// (srun.cpp).
  void stop_for_reported_failure() {
    if (plan_.runner != Runner::srun || options_.resume_code == 0 || worker_processes_.stopping()) return;
    if (output_.reported_failure(0)) worker_processes_.stop(SIGTERM);
  }

  [[nodiscard]] AttemptResult outcome() const {
    if (interrupted_ != 0) return {.exit_code = 128 + interrupted_};
    if (const auto reported = reported_by_rank()) {
      return {.exit_code = reported->exit_code, .cause = forwarded_signal_ == 0 ? reported->cause : ""};
    }
    if (watch_.restart_requested()) {
      return {.exit_code = options_.resume_code,
              .cause = forwarded_signal_ == 0 ? fmt::format("exit code {}", options_.resume_code) : "",
              .restart_requested = true};
    }
    const auto& failure = watch_.failure();
    if (!failure) return {};
    return {.exit_code = failure->exit_code, .cause = forwarded_signal_ == 0 ? failure->cause : ""};
  }

  /// Ends all workers and the processes that they started.
  void end_all() {
    while (worker_processes_.running() > 0) step();
    // The orphans share the workers' grace time if it has begun.
    if (!orphans_.living().empty()) worker_processes_.stop(SIGTERM);
    while (!orphans_.living().empty() && !worker_processes_.grace_is_over()) {
      orphans_.signal_once(SIGTERM);
      step();
    }
    output_.write_message(orphans_.end());
    if (plan_.runner == Runner::mpirun && !worker_processes_.workers().empty()) {
      remove_files_of_mpirun(worker_processes_.workers().front().pid, plan_.workers.front().environment);
    }
    output_.drain_workers();
  }

  /// srun and mpirun end ranks by a signal to each process. A rank that receives it before this process has not failed.
  void wait_for_broadcast_signal() {
    const auto& failure = watch_.failure();
    if (plan_.runner != Runner::task || !failure || failure->exit_code != 128 + SIGTERM) return;
    for (const auto until = Clock::now() + broadcast_signal_delay; forwarded_signal_ == 0 && Clock::now() < until;) {
      pollfd wait{.fd = signals_.fd(), .events = POLLIN, .revents = 0};
      poll(&wait, 1, 10);
      while (const auto signal = signals_.next()) update(*signal);
    }
  }

  /// Waits for output, a reader, a signal or the next deadline, and handles it.
  void step() {
    std::vector<pollfd> waits{{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                              {.fd = watch_.wake_fd(), .events = POLLIN, .revents = 0},
                              {.fd = abandoned_ ? -1 : launcher_gone_, .events = POLLIN, .revents = 0},
                              {.fd = watch_.judge_fd(), .events = POLLIN, .revents = 0}};
    output_.watch(waits);
    poll(waits.data(), waits.size(), poll_timeout_ms());
    if (waits[2].revents != 0) continue_without_launcher();
    watch_.check_abort();
    if (waits[3].revents != 0) watch_.check_verdict();
    while (const auto signal = signals_.next()) update(*signal);
    output_.serve(waits);  // after the signals, because one may have ended the reader
    watch_.poll(forwarded_signal_ != 0);
    stop_for_reported_failure();
    worker_processes_.kill_when_due();
  }

  [[nodiscard]] int poll_timeout_ms() const {
    const int poll_timeout = sooner(output_.poll_timeout_ms(), worker_processes_.poll_timeout_ms());
    const auto deadline = watch_.deadline(forwarded_signal_ != 0);
    if (!deadline) return poll_timeout;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - Clock::now()).count();
    return sooner(poll_timeout, static_cast<int>(std::clamp<int64_t>(left + 1, 1, 60'000)));
  }

  void update(const Signal& signal) {
    if (signal.number == SIGCHLD) {
      worker_processes_.reap(signal.sender, [this](const Worker& worker) { watch_.mark_finished(worker); });
    } else if (is_notice(signal.number)) {
      worker_processes_.send_signal(signal.number);
    } else if (signal.number == SIGHUP && forwarded_signal_ != 0) {
      return;  // not a second request: when a terminal closes, the shell sends SIGHUP, and then the system does
    } else if (!askers_.insert(signal.sender).second) {
      worker_processes_.send_signal(SIGKILL);
    } else if (forwarded_signal_ == 0) {
      forwarded_signal_ = signal.number;
      output_.expire();
      worker_processes_.stop(signal.number);
    }
  }

  /// Called if the launcher was killed: only this process can still end the workers and remove their files.
  void continue_without_launcher() {
    abandoned_ = true;
    output_.write_message("accelerate_launch: the launcher was killed; sending SIGTERM to the ranks\n");
    if (forwarded_signal_ == 0) forwarded_signal_ = SIGTERM;
    output_.expire();
    worker_processes_.stop(SIGTERM);
  }

  /// Writes the remaining output. Waits for a slow reader, unless the end was requested.
  void flush_remaining_output() {
    std::optional<Clock::time_point> until;
    if (forwarded_signal_ != 0) until = Clock::now() + options_.reader_grace;
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
    output_.discard_unread();
  }

  const LaunchPlan& plan_;
  const SuperviseOptions& options_;
  const JobFolders& folders_;
  int launcher_gone_;
  base::FileDescriptor input_;
  bool abandoned_ = false;
  FileLimitScope open_files_;
  Signals signals_;  // constructed before the MPI server, because its threads inherit the blocked signals
  Output output_;
  WorkerProcesses worker_processes_;
  FailureMonitor watch_;
  Orphans orphans_;
  int forwarded_signal_ = 0;
  // Senders of end requests. Slurm signals every process of a job, so launcher and guardian count as one request.
  std::set<pid_t> askers_;
  int interrupted_ = 0;  // signal that ended the wait for a reader
};

}  // namespace

AttemptResult run_worker_group(const LaunchPlan& plan, const SuperviseOptions& options, const JobFolders& folders,
                               int launcher_gone, base::FileDescriptor input) {
  return WorkerGroup(plan, options, folders, launcher_gone, std::move(input)).run();
}

}  // namespace accelerate::launch

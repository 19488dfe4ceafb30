// SPDX-License-Identifier: Apache-2.0
#include "launch/run/supervise.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

#include "accelerate/base/error.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/mpi_start.hpp"
#include "launch/run/output.hpp"
#include "launch/run/signals.hpp"
#include "launch/run/spawn.hpp"
#include "launch/run/straggler.hpp"

namespace accelerate::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns false when nobody reads any more.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EAGAIN) {  // somebody shares our terminal and made it non-blocking
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, -1);
    } else if (n < 0 && errno != EINTR) {
      return false;
    } else if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  return true;
}

struct Stream {
  int from = -1;
  int to = -1;
  LineBuffer lines{};
};

struct Worker {
  int64_t rank = 0;
  pid_t pid = -1;
  bool running = true;
  Tail tail{};
  std::array<Stream, 2> streams{};
};

class Supervisor {
 public:
  explicit Supervisor(const SuperviseOptions& options) : options_(options), host_(base::host_name()) {}
  ~Supervisor() {
    for (auto& worker : workers_) {
      for (auto& stream : worker.streams) close_stream(stream);
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run(const LaunchPlan& plan) {
    try {
      start(plan);
    } catch (...) {
      tell(SIGKILL);
      while (running() > 0) step();
      throw;
    }
    while (running() > 0) step();
    drain();
    report();
    return result_;
  }

 private:
  void start(const LaunchPlan& plan) {
    if (plan.workers.empty()) return;
    const auto& first = plan.workers.front();
    const std::string program = find_program(first.command.front(), first.environment);
    if (plan.serve_mpi) mpi_ = serve_mpi(static_cast<int64_t>(plan.workers.size()));
    for (auto planned : plan.workers) {
      if (mpi_) planned.environment.merge(mpi_->variables(planned.rank));
      const Process process = spawn(program, planned);
      Worker worker{.rank = planned.rank, .pid = process.pid};
      worker.streams[0] = {.from = process.out, .to = options_.out};
      worker.streams[1] = {.from = process.err, .to = options_.err};
      workers_.push_back(std::move(worker));
    }
  }

  [[nodiscard]] int64_t running() const {
    int64_t count = 0;
    for (const auto& worker : workers_) count += worker.running ? 1 : 0;
    return count;
  }

  /// Waits for output, a signal or the next deadline, and deals with it.
  void step() {
    std::vector<pollfd> waits{
        {.fd = signals_.fd(), .events = POLLIN, .revents = 0},
        {.fd = mpi_ && first_failed_ == nullptr ? mpi_->wake_fd() : -1, .events = POLLIN, .revents = 0}};
    const size_t first_source = waits.size();
    std::vector<std::pair<Worker*, Stream*>> sources;
    bool held = false;
    for (auto& worker : workers_) {
      for (auto& stream : worker.streams) {
        held |= !stream.lines.empty();
        if (stream.from < 0) continue;
        waits.push_back({.fd = stream.from, .events = POLLIN, .revents = 0});
        sources.emplace_back(&worker, &stream);
      }
    }
    poll(waits.data(), waits.size(), timeout(held));
    for (size_t i = 0; i < sources.size(); ++i) {
      auto& worker = *sources[i].first;
      auto& stream = *sources[i].second;
      if (waits[i + first_source].revents != 0) relay(worker, stream);
      pass_on(worker, stream, stream.lines.flush(Clock::now()));
    }
    for (int number = signals_.next(); number != 0; number = signals_.next()) {
      if (number != SIGCHLD) forward(number);
    }
    if (mpi_ && first_failed_ == nullptr) look_for_abort();
    reap();
    if (mpi_ && first_failed_ == nullptr) look_at_start();
    if (first_failed_ == nullptr && told_ == 0) name_stragglers();
    if (kill_at_ && Clock::now() >= *kill_at_) tell(SIGKILL);
  }

  [[nodiscard]] int timeout(bool held) const {
    if (held) return static_cast<int>(LineBuffer::patience.count());
    Clock::time_point next = Clock::time_point::max();
    for (const auto& each : {kill_at_, start_deadline_, stragglers_at_}) next = std::min(next, each.value_or(next));
    if (next == Clock::time_point::max()) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 1, 60'000));
  }

  /// Reads what is there, at most one buffer. Returns false when there is nothing (more).
  bool relay(Worker& worker, Stream& stream) {
    std::array<char, 65536> buffer;
    const ssize_t n = read(stream.from, buffer.data(), buffer.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {  // end of file; a terminal says EIO
      pass_on(worker, stream, stream.lines.flush(Clock::now(), true));
      close_stream(stream);
      return false;
    }
    const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
    if (workers_.size() == 1) {
      pass_on(worker, stream, bytes);
    } else {
      pass_on(worker, stream, stream.lines.add(bytes, Clock::now()));
    }
    return true;
  }

  /// Where nobody reads our output any more (| head), the worker gets SIGPIPE, as it would without us.
  static void pass_on(Worker& worker, Stream& stream, std::string_view bytes) {
    if (bytes.empty()) return;
    worker.tail.add(bytes);
    if (!write_all(stream.to, bytes)) close_stream(stream);
  }

  static void close_stream(Stream& stream) {
    if (stream.from >= 0) close(stream.from);
    stream.from = -1;
  }

  /// All workers ended: what they wrote last. Their helpers may hold the pipes open, so we do not wait for the end.
  void drain() {
    for (auto& worker : workers_) {
      for (auto& stream : worker.streams) {
        while (stream.from >= 0 && relay(worker, stream)) {
        }
        pass_on(worker, stream, stream.lines.flush(Clock::now(), true));
      }
    }
  }

  void reap() {
    for (auto& worker : workers_) {
      siginfo_t info{};
      if (!worker.running || waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0) {
        continue;
      }
      // Helpers it left behind go first: until it is reaped nobody else can own this group's number.
      kill(-worker.pid, SIGKILL);
      int status = 0;
      waitpid(worker.pid, &status, 0);
      worker.running = false;
      stragglers_at_ = Clock::now() + options_.straggler;
      if (first_failed_ != nullptr) continue;
      if (exit_code_of(status) != 0) {
        fail(worker, describe(status) + waited_for_whom(worker), exit_code_of(status));
      } else if (mpi_ && mpi_->not_finalized(worker.rank)) {
        fail(worker, "exit code 0 without MPI_Finalize", 1);  // the others would wait for it for ever
      }
    }
  }

  /// In MPI's start all wait for all: one that ended before it never comes, one that stays away is waited for so long
  /// and no longer.
  void look_at_start() {
    const auto absent = awaited(at_start());
    const auto ended = std::find_if(absent.begin(), absent.end(), [](const auto& each) { return !each.running; });
    if (absent.empty()) return start_deadline_.reset();
    if (ended != absent.end()) {
      return fail(worker_of(ended->rank), "exit code 0 before MPI_Init, where others wait for it", 1);
    }
    const auto now = Clock::now();
    if (!start_deadline_) start_deadline_ = now + options_.mpi_start;
    if (now < *start_deadline_) return;
    start_deadline_.reset();
    absent_ = true;
    fail(worker_of(absent.front().rank),
         fmt::format("{} not come to MPI_Init within {:g} s, where others wait", names(absent),
                     std::chrono::duration<double>(options_.mpi_start).count()),
         1);
  }

  [[nodiscard]] const Worker& worker_of(int64_t rank) const {
    return *std::find_if(workers_.begin(), workers_.end(), [&](const auto& each) { return each.rank == rank; });
  }

  [[nodiscard]] std::vector<AtMpiStart> at_start() const {
    std::vector<AtMpiStart> all;
    for (const auto& worker : workers_) {
      all.push_back({.rank = worker.rank,
                     .running = worker.running,
                     .came = mpi_->has_come(worker.rank),
                     .finalized = !mpi_->not_finalized(worker.rank)});
    }
    return all;
  }

  void name_stragglers() {
    if (!stragglers_at_ || Clock::now() < *stragglers_at_) return;
    stragglers_at_.reset();
    for (const auto& worker : workers_) {
      if (!worker.running) continue;
      write_all(
          options_.err,
          fmt::format("accelerate_launch: worker {} ({}, pid {}) still runs {:g} s after the others ended; it {}\n",
                      worker.rank, host_, worker.pid, std::chrono::duration<double>(options_.straggler).count(),
                      what_it_does(worker.pid)));
    }
  }

  void look_for_abort() {
    mpi_->heard();
    const auto abort = mpi_->aborted();
    for (const auto& worker : workers_) {
      if (!abort || worker.rank != abort->rank) continue;
      const int code = abort->code & 0xff;
      fail(worker, fmt::format("MPI_Abort({})", abort->code), code == 0 ? 1 : code);
    }
  }

  /// A worker that gave up in MPI's start is not the cause of it.
  [[nodiscard]] std::string waited_for_whom(const Worker& worker) const {
    if (!mpi_ || !mpi_->not_finalized(worker.rank)) return "";
    const auto absent = absent_of(at_start());
    return absent.empty() ? "" : fmt::format(" in MPI_Init, to which {} not come", names(absent));
  }

  void fail(const Worker& worker, const std::string& cause, int exit_code) {
    first_failed_ = &worker;
    cause_ = cause;
    result_ = exit_code;
    stopped_ = running() > 0 && !kill_at_;
    if (stopped_) stop_with_grace(SIGTERM);
  }

  void forward(int number) {
    if (is_notice(number)) {
      tell(number);
    } else if (told_ != 0) {
      tell(SIGKILL);
    } else {
      told_ = number;
      stop_with_grace(number);
    }
  }

  void stop_with_grace(int number) {
    tell(number);
    if (!kill_at_) kill_at_ = Clock::now() + options_.grace;  // a signal during a failure's grace gives no more time
  }

  void tell(int number) {
    for (const auto& worker : workers_) {
      if (worker.running) kill(-worker.pid, number);
    }
  }

  void report() {
    if (first_failed_ == nullptr) return;
    const auto& worker = *first_failed_;
    const std::string who = fmt::format("accelerate_launch: worker {} ({}, pid {})", worker.rank, host_, worker.pid);
    std::string text;
    const std::string last = worker.tail.text();
    const std::string lines = last.empty() ? "It printed nothing." : "Its last lines follow.";
    if (absent_) {
      text = fmt::format("accelerate_launch: {} ({}, pid {}); all were stopped. {}\n{}", cause_, host_, worker.pid,
                         lines, last);
    } else if (told_ != 0) {
      text = fmt::format("{} ended with {} after signal {} was passed on.\n", who, cause_, told_);
    } else if (workers_.size() == 1) {
      text = fmt::format("{} ended with {}.\n", who, cause_);
    } else {
      text = fmt::format("{} ended first, {}{}. {}\n{}", who, cause_, stopped_ ? "; the others were stopped" : "",
                         lines, last);
    }
    write_all(options_.err, text);
  }

  SuperviseOptions options_;
  std::string host_;
  Signals signals_;  // before the server: its threads inherit what is blocked
  std::unique_ptr<MpiServer> mpi_;
  std::vector<Worker> workers_;
  const Worker* first_failed_ = nullptr;
  std::string cause_;
  int result_ = 0;
  int told_ = 0;  // the signal that we passed on
  bool stopped_ = false;
  bool absent_ = false;  // the one that failed did not end: it never came to MPI's start
  std::optional<Clock::time_point> start_deadline_;
  std::optional<Clock::time_point> stragglers_at_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

std::string describe(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  std::string words = strsignal(WTERMSIG(status));
  if (words.size() > 1 && std::islower(static_cast<unsigned char>(words[1])) != 0) {
    words[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(words[0])));
  }
  return fmt::format("signal {} ({})", WTERMSIG(status), words);
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

int supervise(const LaunchPlan& plan, const SuperviseOptions& options) { return Supervisor(options).run(plan); }

}  // namespace accelerate::launch

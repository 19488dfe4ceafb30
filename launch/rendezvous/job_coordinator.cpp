// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous/job_coordinator.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <exception>
#include <latch>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "launch/plan/error.hpp"
#include "launch/run/failure_pipe.hpp"
#include "launch/run/hang_detector.hpp"

namespace accelerate::launch {
namespace {

/// Blocks a signal, or all, for the calling thread.
class Blocked {
 public:
  explicit Blocked(int number) {
    sigset_t set;
    number == 0 ? sigfillset(&set) : (sigemptyset(&set), sigaddset(&set, number));
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~Blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

 private:
  sigset_t before_{};
};

/// The workers are forked while the watcher thread runs, and a forked child contains only the forking thread. A lock
/// that the watcher holds at that moment, even one inside an allocator without fork handlers, would never be released
/// in the child. The watcher therefore holds this mutex except while it waits in poll(), and fork() takes it.
std::mutex between_forks;

void exclude_forks() {
  [[maybe_unused]] static const int once =
      pthread_atfork([] { between_forks.lock(); }, [] { between_forks.unlock(); }, [] { between_forks.unlock(); });
}

class JobCoordinator {
 public:
  JobCoordinator(RendezvousResult gathered, const JoinRequest& own, const JobCoordinatorOptions& options)
      : gathered_(std::move(gathered)),
        own_(own),
        options_(options),
        hang_detector_(own.machines, std::chrono::milliseconds(own.hang_ms)),
        done_(gathered_.members.size()) {
    exclude_forks();
    const Blocked all(0);  // inherited by the watcher thread: the thread of the work handles signals
    watcher_ = std::thread([this] { watch(); });
    watches_.wait();
  }
  ~JobCoordinator() {
    must_stop_ = true;
    eventfd_write(wake_.get(), 1);
    watcher_.join();
  }
  JobCoordinator(const JobCoordinator&) = delete;
  JobCoordinator& operator=(const JobCoordinator&) = delete;

  JobResult run(const std::function<LocalResult()>& work) {
    const auto [code, was_signalled] = carry_out(work);
    receive_failure();
    const bool asks = options_.resume_code != 0 && code == options_.resume_code;
    if (code != 0 && !asks) {
      fail_here(
          {.exit_code = code, .text = fmt::format("it ended with exit code {}", code), .is_final = was_signalled});
    }
    return verdict(code);
  }

 private:
  LocalResult carry_out(const std::function<LocalResult()>& work) {
    const Blocked sigterm(SIGTERM);  // the SIGTERM sent here must not end this process if the work has just finished
    try {
      const Working here(*this);
      return work();
    } catch (const LaunchError& error) {
      fail_here({.exit_code = error.exit_code(), .text = std::string(error.message()), .is_final = true});
      throw;
      // for example, a full disk or memory; the other machines must not wait for this one
    } catch (const std::exception& error) {
      fail_here({.exit_code = 1, .text = error.what(), .is_final = true});
      throw;
    }
  }

  struct Working {
    explicit Working(JobCoordinator& of) : bond(of) { bond.working(true); }
    ~Working() { bond.working(false); }
    Working(const Working&) = delete;
    Working& operator=(const Working&) = delete;
    JobCoordinator& bond;
  };

  void working(bool whether) {
    const std::lock_guard lock(mutex_);
    is_working_ = whether;
    if (whether && end_) stop_local_ranks();  // another machine failed before this one began
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    constexpr timespec now{};
    if (!whether && end_) sigtimedwait(&set, nullptr, &now);
  }

  /// Reads the first failure of this machine, if any. May be called on both threads.
  void receive_failure() {
    if (const auto failure = read_failure_notice(options_.failures)) {
      fail_here({.exit_code = failure->exit_code, .text = failure->text, .is_final = failure->was_signalled});
    }
  }

  void fail_here(const JobFailure& end) {
    const std::lock_guard lock(mutex_);
    if (end_) return;
    end_ = JobFailure{.exit_code = end.exit_code,
                      .text = fmt::format("machine {} ({}): {}", own_.machine, own_.host, end.text),
                      .is_final = end.is_final};
    failed_locally_ = true;
    broadcast_message(message_of(*end_), nullptr);
  }

  /// Reads hang status messages from the guardian.
  void receive_from_guardian() {
    std::array<char, 4096> bytes;
    const ssize_t count = recv(options_.hang, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) return;
    from_guardian_.append(bytes.data(), static_cast<size_t>(count));
    const std::lock_guard lock(mutex_);
    while (const auto message = take_message(from_guardian_)) {
      if (own_.machine != 0) broadcast_message(*message + "\n", nullptr);
      receive_hang_status(own_.machine, *message);
    }
  }

  void receive_hang_status(int64_t machine, std::string_view message) {
    auto stillness = parse_hang_status(message);
    if (!stillness || own_.machine != 0) return;
    hang_detector_.update(machine, std::move(*stillness), HangDetector::Clock::now());
  }

  /// Machine 0 only: it receives the hang status of all machines.
  void detector_fd() {
    const std::lock_guard lock(mutex_);
    if (own_.machine != 0) return;
    if (const auto cause = hang_detector_.verdict(HangDetector::Clock::now())) kill_stalled_ranks({.cause = *cause});
  }

  /// Returns the poll() timeout in milliseconds until detector_fd() must run again, or -1 if no deadline is pending.
  int time_until_verdict() {
    const std::lock_guard lock(mutex_);
    const auto deadline = hang_detector_.deadline();
    if (own_.machine != 0 || end_ || all_done_ || !deadline) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - HangDetector::Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
  }

  /// Logs the state of this machine's ranks and ends them, as each machine does.
  void kill_stalled_ranks(const HangNotice& hung) {
    if (end_ || all_done_) return;
    end_ = JobFailure{.exit_code = kExitCodeOfHang, .text = hung.cause};
    failed_locally_ = is_working_;
    if (own_.machine == 0) broadcast_message(message_of(hung), nullptr);
    const auto line = hung.cause + "\n";
    if (is_working_) send(options_.hang, line.data(), line.size(), MSG_NOSIGNAL);
    changed_.notify_all();
  }

  /// Waits until the job has ended everywhere.
  JobResult verdict(int own_code) {
    std::unique_lock lock(mutex_);
    is_done_ = true;
    hang_detector_.mark_finished(own_.machine, HangDetector::Clock::now());
    eventfd_write(wake_.get(), 1);  // the watcher has a deadline now
    if (options_.resume_code != 0 && own_code == options_.resume_code) restart_requested_ = true;
    if (own_.machine != 0 && !end_) broadcast_message(final_report(), nullptr);
    broadcast_if_all_done();
    changed_.wait(lock, [this] { return end_ || all_done_; });
    if (end_ && !failed_locally_) {
      fmt::print(stderr, "accelerate_launch: {}{}\n", end_->text,
                 were_stopped_ ? "; the ranks of this machine were stopped" : "");
    }
    if (!end_) return {.exit_code = restart_requested_ ? options_.resume_code : own_code};
    return {.exit_code = end_->exit_code, .again = own_.machine == 0 ? decide() : receive_restart_decision(lock)};
  }

  std::optional<std::chrono::milliseconds> decide() {
    const auto decision = end_->is_final || !options_.decide ? RestartDecision{} : options_.decide(end_->text);
    fmt::print(stderr, "{}", decision.line);
    broadcast_message(message_of(RestartNotice{.after = decision.after}), nullptr);
    return decision.after;
  }

  std::optional<std::chrono::milliseconds> receive_restart_decision(std::unique_lock<std::mutex>& lock) {
    if (!options_.may_restart || end_->is_final) return std::nullopt;
    changed_.wait(lock, [this] { return again_ || host_connection_lost_; });
    return again_ ? again_->after : std::nullopt;
  }

  [[nodiscard]] std::string final_report() const {
    return std::string(restart_requested_ ? kRestartRequestMessage : kDoneMessage);
  }

  /// On machine 0: sends the result to all machines after all are done.
  void broadcast_if_all_done() {
    if (own_.machine != 0 || end_ || !is_done_ || std::count(done_.begin(), done_.end(), false) != 0) return;
    broadcast_message(final_report(), nullptr);
    all_done_ = true;
    changed_.notify_all();
  }

  void broadcast_message(const std::string& message, const RendezvousPeer* but) const {
    for (const auto& member : gathered_.members) {
      if (&member != but) send(member.connection.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  void watch() {
    std::vector<pollfd> waits;
    for (const auto& member : gathered_.members) waits.push_back({member.connection.get(), POLLIN, 0});
    waits.push_back({options_.hang, POLLIN, 0});
    waits.push_back({options_.failures, POLLIN, 0});
    waits.push_back({wake_.get(), POLLIN, 0});
    std::unique_lock awake(between_forks);
    watches_.count_down();
    while (!must_stop_) {
      const int until = time_until_verdict();
      awake.unlock();
      poll(waits.data(), waits.size(), until);
      awake.lock();
      eventfd_t ignored = 0;
      eventfd_read(wake_.get(), &ignored);
      for (size_t i = 0; i < gathered_.members.size(); ++i) {
        if (waits[i].revents != 0 && !update(i)) waits[i].fd = -1;
      }
      if (waits[gathered_.members.size()].revents != 0) receive_from_guardian();
      if (waits[gathered_.members.size() + 1].revents != 0) receive_failure();
      detector_fd();
    }
  }

  /// \returns true if more messages can follow.
  bool update(size_t which) {
    RendezvousPeer& member = gathered_.members[which];
    std::array<char, 1024> bytes;
    const ssize_t count = read(member.connection.get(), bytes.data(), bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    const std::lock_guard lock(mutex_);
    if (count <= 0) {
      handle_lost_peer(which);
      return false;
    }
    member.received.append(bytes.data(), static_cast<size_t>(count));
    while (const auto message = take_message(member.received)) {
      if (const auto end = parse_job_failure(*message)) end_job(*end, &member);
      if (const auto again = parse_restart_notice(*message)) again_ = again;
      if (const auto hung = parse_hang_notice(*message)) kill_stalled_ranks(*hung);
      receive_hang_status(member.machine, *message);
      const bool asks = *message + "\n" == kRestartRequestMessage;
      restart_requested_ = restart_requested_ || asks;
      if (asks || *message + "\n" == kDoneMessage) handle_done(which);
    }
    changed_.notify_all();
    return true;
  }

  void handle_done(size_t which) {
    done_[which] = true;
    if (own_.machine != 0) all_done_ = true;
    hang_detector_.mark_finished(gathered_.members[which].machine, HangDetector::Clock::now());
    changed_.notify_all();
    broadcast_if_all_done();
  }

  /// Handles the end of a connection. A machine that was done may disconnect.
  void handle_lost_peer(size_t which) {
    host_connection_lost_ = own_.machine != 0;
    changed_.notify_all();
    if (done_[which] || all_done_) return;
    const RendezvousPeer& member = gathered_.members[which];
    end_job({.exit_code = 1,
             .text = fmt::format("{} is gone: its launcher was killed, or its host or the network is down",
                                 peer_name(member)),
             .is_final = true},
            &member);
  }

  void end_job(const JobFailure& end, const RendezvousPeer* from) {
    if (end_ || all_done_) return;
    end_ = end;
    broadcast_message(message_of(end), from);
    if (is_working_) stop_local_ranks();
    changed_.notify_all();
  }

  void stop_local_ranks() {
    were_stopped_ = true;
    kill(getpid(), SIGTERM);
  }

  RendezvousResult gathered_;
  JoinRequest own_;
  JobCoordinatorOptions options_;
  HangDetector hang_detector_;
  std::string from_guardian_;                                          // incomplete message
  base::FileDescriptor wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};  // wakes the watcher
  std::atomic<bool> must_stop_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<JobFailure> end_;  // set if the job ends early
  bool failed_locally_ = false;    // true if the end began on this machine
  bool is_working_ = false;
  bool were_stopped_ = false;  // true if another machine caused the end of the ranks here
  bool is_done_ = false;       // true if this machine is done
  std::vector<bool> done_;     // per member
  bool all_done_ = false;
  bool restart_requested_ =
      false;  // true if a rank requests a restart: on this machine, or on machine 0 any rank of the job
  std::optional<RestartNotice> again_;  // decision of machine 0, on the other machines
  bool host_connection_lost_ = false;
  std::latch watches_{1};
  std::thread watcher_;
};

}  // namespace

JobResult run_coordinated(RendezvousResult gathered, const JoinRequest& own, const JobCoordinatorOptions& options,
                          const std::function<LocalResult()>& work) {
  return JobCoordinator(std::move(gathered), own, options).run(work);
}

}  // namespace accelerate::launch

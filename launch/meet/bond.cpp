// SPDX-License-Identifier: Apache-2.0
#include "launch/meet/bond.hpp"

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
#include "launch/run/announce.hpp"
#include "launch/run/hang_judge.hpp"

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

void keep_forks_apart() {
  [[maybe_unused]] static const int once =
      pthread_atfork([] { between_forks.lock(); }, [] { between_forks.unlock(); }, [] { between_forks.unlock(); });
}

class Bond {
 public:
  Bond(Gathered gathered, const Hello& own, const BondOptions& options)
      : gathered_(std::move(gathered)),
        own_(own),
        options_(options),
        hang_judge_(own.machines, std::chrono::milliseconds(own.hang_ms)),
        done_(gathered_.members.size()) {
    keep_forks_apart();
    const Blocked all(0);  // inherited by the watcher thread: the thread of the work handles signals
    watcher_ = std::thread([this] { watch(); });
    watches_.wait();
  }
  ~Bond() {
    has_to_stop_ = true;
    eventfd_write(wake_.get(), 1);
    watcher_.join();
  }
  Bond(const Bond&) = delete;
  Bond& operator=(const Bond&) = delete;

  Together run(const std::function<WorkEnd()>& work) {
    const auto [code, was_told] = carry_out(work);
    hear_failure();
    const bool asks = options_.resume_code != 0 && code == options_.resume_code;
    if (code != 0 && !asks) {
      fail_here({.exit_code = code, .text = fmt::format("it ended with exit code {}", code), .is_final = was_told});
    }
    return verdict(code);
  }

 private:
  WorkEnd carry_out(const std::function<WorkEnd()>& work) {
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
    explicit Working(Bond& of) : bond(of) { bond.working(true); }
    ~Working() { bond.working(false); }
    Working(const Working&) = delete;
    Working& operator=(const Working&) = delete;
    Bond& bond;
  };

  void working(bool whether) {
    const std::lock_guard lock(mutex_);
    is_working_ = whether;
    if (whether && end_) stop_ours();  // another machine failed before this one began
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    constexpr timespec now{};
    if (!whether && end_) sigtimedwait(&set, nullptr, &now);
  }

  /// Reads the first failure of this machine, if any. May be called on both threads.
  void hear_failure() {
    if (const auto failure = read_announcement(options_.failures)) {
      fail_here({.exit_code = failure->exit_code, .text = failure->text, .is_final = failure->was_told});
    }
  }

  void fail_here(const End& end) {
    const std::lock_guard lock(mutex_);
    if (end_) return;
    end_ = End{.exit_code = end.exit_code,
               .text = fmt::format("machine {} ({}): {}", own_.machine, own_.host, end.text),
               .is_final = end.is_final};
    is_ours_ = true;
    tell_all(message_of(*end_), nullptr);
  }

  /// Reads hang status messages from the guardian.
  void hear_guardian() {
    std::array<char, 4096> bytes;
    const ssize_t count = recv(options_.hang, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) return;
    from_guardian_.append(bytes.data(), static_cast<size_t>(count));
    const std::lock_guard lock(mutex_);
    while (const auto message = take_message(from_guardian_)) {
      if (own_.machine != 0) tell_all(*message + "\n", nullptr);
      hear_stillness(own_.machine, *message);
    }
  }

  void hear_stillness(int64_t machine, std::string_view message) {
    auto stillness = read_stillness(message);
    if (!stillness || own_.machine != 0) return;
    hang_judge_.hear(machine, std::move(*stillness), HangJudge::Clock::now());
  }

  /// Machine 0 only: it receives the hang status of all machines.
  void judge() {
    const std::lock_guard lock(mutex_);
    if (own_.machine != 0) return;
    if (const auto cause = hang_judge_.verdict(HangJudge::Clock::now())) end_still_ranks({.cause = *cause});
  }

  /// Returns the poll() timeout in milliseconds until judge() must run again, or -1 if no deadline is pending.
  int until_judged() {
    const std::lock_guard lock(mutex_);
    const auto deadline = hang_judge_.deadline();
    if (own_.machine != 0 || end_ || all_done_ || !deadline) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - HangJudge::Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
  }

  /// Logs the state of this machine's ranks and ends them, as each machine does.
  void end_still_ranks(const Hung& hung) {
    if (end_ || all_done_) return;
    end_ = End{.exit_code = exit_code_of_hang, .text = hung.cause};
    is_ours_ = is_working_;
    if (own_.machine == 0) tell_all(message_of(hung), nullptr);
    const auto line = hung.cause + "\n";
    if (is_working_) send(options_.hang, line.data(), line.size(), MSG_NOSIGNAL);
    changed_.notify_all();
  }

  /// Waits until the job has ended everywhere.
  Together verdict(int own_code) {
    std::unique_lock lock(mutex_);
    is_done_ = true;
    hang_judge_.take_leave_of(own_.machine, HangJudge::Clock::now());
    eventfd_write(wake_.get(), 1);  // the watcher has a deadline now
    if (options_.resume_code != 0 && own_code == options_.resume_code) asks_ = true;
    if (own_.machine != 0 && !end_) tell_all(said_at_end(), nullptr);
    tell_if_all_are_done();
    changed_.wait(lock, [this] { return end_ || all_done_; });
    if (end_ && !is_ours_) {
      fmt::print(stderr, "accelerate_launch: {}{}\n", end_->text,
                 were_stopped_ ? "; the ranks of this machine were stopped" : "");
    }
    if (!end_) return {.exit_code = asks_ ? options_.resume_code : own_code};
    return {.exit_code = end_->exit_code, .again = own_.machine == 0 ? decide() : hear_decision(lock)};
  }

  std::optional<std::chrono::milliseconds> decide() {
    const auto decision = end_->is_final || !options_.decide ? RestartDecision{} : options_.decide(end_->text);
    fmt::print(stderr, "{}", decision.line);
    tell_all(message_of(Again{.after = decision.after}), nullptr);
    return decision.after;
  }

  std::optional<std::chrono::milliseconds> hear_decision(std::unique_lock<std::mutex>& lock) {
    if (!options_.may_restart || end_->is_final) return std::nullopt;
    changed_.wait(lock, [this] { return again_ || zero_is_lost_; });
    return again_ ? again_->after : std::nullopt;
  }

  [[nodiscard]] std::string said_at_end() const { return std::string(asks_ ? asks_message : done_message); }

  /// On machine 0: sends the result to all machines after all are done.
  void tell_if_all_are_done() {
    if (own_.machine != 0 || end_ || !is_done_ || std::count(done_.begin(), done_.end(), false) != 0) return;
    tell_all(said_at_end(), nullptr);
    all_done_ = true;
    changed_.notify_all();
  }

  void tell_all(const std::string& message, const Member* but) const {
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
    while (!has_to_stop_) {
      const int until = until_judged();
      awake.unlock();
      poll(waits.data(), waits.size(), until);
      awake.lock();
      eventfd_t ignored = 0;
      eventfd_read(wake_.get(), &ignored);
      for (size_t i = 0; i < gathered_.members.size(); ++i) {
        if (waits[i].revents != 0 && !hear(i)) waits[i].fd = -1;
      }
      if (waits[gathered_.members.size()].revents != 0) hear_guardian();
      if (waits[gathered_.members.size() + 1].revents != 0) hear_failure();
      judge();
    }
  }

  /// \returns true if more messages can follow.
  bool hear(size_t which) {
    Member& member = gathered_.members[which];
    std::array<char, 1024> bytes;
    const ssize_t count = read(member.connection.get(), bytes.data(), bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    const std::lock_guard lock(mutex_);
    if (count <= 0) {
      lose(which);
      return false;
    }
    member.received.append(bytes.data(), static_cast<size_t>(count));
    while (const auto message = take_message(member.received)) {
      if (const auto end = read_end(*message)) end_job(*end, &member);
      if (const auto again = read_again(*message)) again_ = again;
      if (const auto hung = read_hung(*message)) end_still_ranks(*hung);
      hear_stillness(member.machine, *message);
      const bool asks = *message + "\n" == asks_message;
      asks_ = asks_ || asks;
      if (asks || *message + "\n" == done_message) note_done(which);
    }
    changed_.notify_all();
    return true;
  }

  void note_done(size_t which) {
    done_[which] = true;
    if (own_.machine != 0) all_done_ = true;
    hang_judge_.take_leave_of(gathered_.members[which].machine, HangJudge::Clock::now());
    changed_.notify_all();
    tell_if_all_are_done();
  }

  /// Handles the end of a connection. A machine that was done may disconnect.
  void lose(size_t which) {
    zero_is_lost_ = own_.machine != 0;
    changed_.notify_all();
    if (done_[which] || all_done_) return;
    const Member& member = gathered_.members[which];
    end_job({.exit_code = 1,
             .text = fmt::format("{} is gone: its launcher was killed, or its host or the network is down",
                                 name_of(member)),
             .is_final = true},
            &member);
  }

  void end_job(const End& end, const Member* from) {
    if (end_ || all_done_) return;
    end_ = end;
    tell_all(message_of(end), from);
    if (is_working_) stop_ours();
    changed_.notify_all();
  }

  void stop_ours() {
    were_stopped_ = true;
    kill(getpid(), SIGTERM);
  }

  Gathered gathered_;
  Hello own_;
  BondOptions options_;
  HangJudge hang_judge_;
  std::string from_guardian_;                                          // incomplete message
  base::FileDescriptor wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};  // wakes the watcher
  std::atomic<bool> has_to_stop_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<End> end_;  // set if the job ends early
  bool is_ours_ = false;    // true if the end began on this machine
  bool is_working_ = false;
  bool were_stopped_ = false;  // true if another machine caused the end of the ranks here
  bool is_done_ = false;       // true if this machine is done
  std::vector<bool> done_;     // per member
  bool all_done_ = false;
  bool asks_ = false;  // true if a rank requests a restart: on this machine, or on machine 0 any rank of the job
  std::optional<Again> again_;  // decision of machine 0, on the other machines
  bool zero_is_lost_ = false;
  std::latch watches_{1};
  std::thread watcher_;
};

}  // namespace

Together run_together(Gathered gathered, const Hello& own, const BondOptions& options,
                      const std::function<WorkEnd()>& work) {
  return Bond(std::move(gathered), own, options).run(work);
}

}  // namespace accelerate::launch

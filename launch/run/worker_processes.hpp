// SPDX-License-Identifier: Apache-2.0
// Tracks which workers run, records the order in which they end, and stops them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace accelerate::launch {

struct Worker {
  int64_t rank = 0;
  pid_t pid = -1;               ///< also the id of its process group
  std::optional<int> status{};  ///< from waitpid(); unset while it runs

  [[nodiscard]] bool running() const noexcept { return !status; }
};

class WorkerProcesses {
 public:
  using Clock = std::chrono::steady_clock;

  /// \param grace  Time between the signal that requests the end and SIGKILL.
  explicit WorkerProcesses(std::chrono::milliseconds grace) : grace_(grace) {}

  void add(int64_t rank, pid_t pid) { workers_.push_back({.rank = rank, .pid = pid}); }
  [[nodiscard]] const std::vector<Worker>& workers() const noexcept { return workers_; }
  [[nodiscard]] size_t running() const;
  /// Ranks that are suspended by a signal (SIGSTOP): they neither work nor end.
  [[nodiscard]] std::vector<int64_t> suspended() const;

  /// Reaps every worker that has ended, and the processes that it left in its process group. Other ended children of
  /// this process are reaped too.
  ///
  /// \param first     Child named in SIGCHLD; it ended first among all children that ended since the previous SIGCHLD.
  /// \param on_ended  Called once for each ended worker, in the order of their ends as far as it is known.
  void reap(pid_t first, const std::function<void(const Worker&)>& on_ended);

  /// Sends a signal to every running worker's process group.
  void send_signal(int number) const;
  /// The same, followed by SIGKILL after the grace time. A second stop() does not restart the grace time.
  void stop(int number);
  /// True after stop() if the grace time is over.
  [[nodiscard]] bool grace_is_over() const { return kill_at_ && Clock::now() >= *kill_at_; }
  [[nodiscard]] bool stopping() const noexcept { return kill_at_.has_value(); }

  /// Milliseconds until kill_when_due() must run, or -1 if no kill is pending.
  [[nodiscard]] int poll_timeout_ms() const;
  void kill_when_due() const;

 private:
  void reap_other_children() const;
  void reap_one(Worker& worker, const std::function<void(const Worker&)>& on_ended) const;

  std::chrono::milliseconds grace_;
  std::vector<Worker> workers_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// One thread that carries out jobs in order, and that can be left behind when a job never ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace accelerate::comm {

using Deadline = std::chrono::steady_clock::time_point;

/// What a job is told.
struct Turn {
  bool comes = true;                             ///< false: it never will
  const std::atomic<Deadline>* until = nullptr;  ///< how long it may wait for others; may come nearer meanwhile

  [[nodiscard]] bool expired() const { return until != nullptr && std::chrono::steady_clock::now() > until->load(); }
};

class Worker {
 public:
  /// patience   how long a job may wait for others, when the worker's own thread carries it out
  explicit Worker(std::chrono::milliseconds patience);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Leaves the thread behind when its job does not end at once.
  ~Worker();

  /// Called once, on whatever thread. Does not throw.
  using Job = std::function<void(Turn)>;

  /// Who carries a job out: the worker's thread; that one or whoever waits for it; who waits for it, while the thread
  /// may sleep, unless others come by: the next job, or a take_over() of another one, carries it out too.
  enum class Carrier { thread, anyone, waiter };

  /// Starts the thread with the first job. After abandon() the job is told at once that its turn never comes.
  /// Returns the job's number.
  uint64_t push(Job job, Carrier carrier = Carrier::anyone);

  /// Carries out, on the calling thread, a job that it would only wait for, and those before it: that saves two thread
  /// switches. False when the job is over already, or the worker's thread does it.
  bool take_over(uint64_t number, Deadline deadline);

  /// Nobody will wait for what was left to its waiter: the thread does it.
  void nudge() noexcept;

  /// The job of that number, or the one before it that it waits for, waits for others no longer.
  void hurry(uint64_t number) noexcept;

  /// Lets the queued jobs end. False when they did not within the time: the thread is left behind, with them. Called by
  /// a job, it does not wait for that job; an idle thread is waited for in any case, as it ends at once.
  bool stop(std::chrono::milliseconds patience) noexcept;

  /// A job hangs: nothing waits for the thread any more, and the jobs behind it are told so.
  void abandon() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accelerate::comm

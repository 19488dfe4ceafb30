// SPDX-License-Identifier: Apache-2.0
// One thread that carries out jobs in order, and that can be left behind when a job never ends; the handle of such a
// job.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/comm/core/completable_work.hpp"

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

/// Waiting for it carries it out where nobody has begun it: on 2 ranks and 2 cores a training step of 1.87 ms took 1.48
/// that way, because cores went idle while one thread woke another.
class CallerRunsWork : public CompletableWork {
 public:
  CallerRunsWork(c10d::OpType type, std::vector<at::Tensor> tensors, std::weak_ptr<Worker> worker, bool waiter_may,
                 std::chrono::milliseconds limit)
      : CompletableWork(type, std::move(tensors)),
        worker_(std::move(worker)),
        waiter_may_(waiter_may),
        own_limit_(limit) {}

  bool wait(std::chrono::milliseconds timeout) override;
  /// Asked, it is no longer left to a wait.
  bool isCompleted() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  /// Its number among the worker's jobs, told before anybody can wait for it.
  void set_number(uint64_t number) { number_ = number; }

 private:
  void nudge() const;

  std::weak_ptr<Worker> worker_;  // its jobs hold works
  bool waiter_may_;
  std::chrono::milliseconds own_limit_;
  uint64_t number_ = 0;
};

}  // namespace accelerate::comm

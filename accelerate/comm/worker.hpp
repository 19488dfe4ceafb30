// SPDX-License-Identifier: Apache-2.0
// One thread that carries out jobs in order, and that can be left behind when a job never ends.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace accelerate::comm {

class Worker {
 public:
  Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Drops jobs not begun; leaves the thread behind when its job does not end at once.
  ~Worker();

  /// Starts the thread with the first job. Jobs do not throw.
  void push(std::function<void()> job);

  /// Lets the queued jobs end. False when they did not within the time: the thread is left behind, with them.
  bool stop(std::chrono::milliseconds patience) noexcept;

  /// A job hangs: nothing waits for the thread any more.
  void abandon() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accelerate::comm

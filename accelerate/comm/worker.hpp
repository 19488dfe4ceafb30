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
  /// Leaves the thread behind when its job does not end at once.
  ~Worker();

  /// What became of a job when it is called: it is its turn, or it will never be.
  enum class Turn { come, never };
  /// Called once, on whatever thread. Does not throw.
  using Job = std::function<void(Turn)>;

  /// Starts the thread with the first job. After abandon() the job is told at once that its turn never comes.
  void push(Job job);

  /// Lets the queued jobs end. False when they did not within the time: the thread is left behind, with them.
  bool stop(std::chrono::milliseconds patience) noexcept;

  /// A job hangs: nothing waits for the thread any more, and the jobs behind it are told so.
  void abandon() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accelerate::comm

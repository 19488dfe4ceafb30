// SPDX-License-Identifier: Apache-2.0
// One thread that carries out jobs in order, and that can be left behind when a job never ends.
#pragma once

#include <chrono>
#include <cstdint>
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

  using Deadline = std::chrono::steady_clock::time_point;

  /// What a job is told.
  struct Turn {
    bool comes = true;                    ///< false: it never will
    Deadline deadline = Deadline::max();  ///< until when the thread that carries it out may wait
  };
  /// Called once, on whatever thread. Does not throw.
  using Job = std::function<void(Turn)>;

  /// Starts the thread with the first job. After abandon() the job is told at once that its turn never comes.
  /// Returns the job's number. wake false: the caller will call take_over() with it, so the thread may go on sleeping.
  uint64_t push(Job job, bool wake = true);

  /// Carries a job out on the calling thread, which would only wait for it, and saves two thread switches. False when
  /// the job is not the next, or another one is under way: then the thread does it.
  bool take_over(uint64_t number, Deadline deadline);

  /// Lets the queued jobs end. False when they did not within the time: the thread is left behind, with them.
  bool stop(std::chrono::milliseconds patience) noexcept;

  /// A job hangs: nothing waits for the thread any more, and the jobs behind it are told so.
  void abandon() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accelerate::comm

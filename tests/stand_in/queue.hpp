// SPDX-License-Identifier: Apache-2.0
// A stream: a thread that runs jobs in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

#include "tests/stand_in/clock.hpp"

namespace stand_in {

class Queue {
 public:
  /// Returns the job's number, from 1.
  uint64_t push(std::function<void()> job);
  /// Waits until all jobs so far have ended. \throws the exception of a job once, as a GPU does.
  void wait();
  [[nodiscard]] bool idle();
  [[nodiscard]] uint64_t issued();

  Clock seen;  ///< work that precedes its next job; guarded by the world's mutex

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  uint64_t issued_ = 0;
  uint64_t finished_ = 0;
  std::exception_ptr error_;
  bool started_ = false;
};

}  // namespace stand_in

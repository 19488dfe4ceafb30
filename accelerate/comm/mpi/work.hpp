// SPDX-License-Identifier: Apache-2.0
// The handle of an operation over MPI. Private to the mpi backend.
#pragma once

#include "accelerate/comm/core/completable_work.hpp"
#include "accelerate/comm/core/worker.hpp"

namespace accelerate::comm {

/// How long a thread that was told to hurry may take to say who is missing.
inline constexpr std::chrono::seconds kSayingWho{1};

/// Waiting for it carries it out where nobody has begun it: on 2 ranks and 2 cores a training step of 1.87 ms took 1.48
/// that way, because cores went idle while one thread woke another.
class MpiWork : public CompletableWork {
 public:
  MpiWork(c10d::OpType type, std::vector<at::Tensor> tensors, std::weak_ptr<Worker> worker, bool waiter_may,
          std::chrono::milliseconds limit)
      : CompletableWork(type, std::move(tensors)),
        worker_(std::move(worker)),
        waiter_may_(waiter_may),
        own_limit_(limit) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const auto limit = timeout > std::chrono::milliseconds(0) ? timeout : own_limit_;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    const auto worker = worker_.lock();
    if (worker && waiter_may_ && !CompletableWork::isCompleted()) worker->take_over(number_, deadline);
    if (ended_by(deadline)) return true;
    if (worker) worker->hurry(number_);
    if (ended_by(deadline + kSayingWho)) return true;
    throw DeadlinePassed();
  }

  /// Asked, it is no longer left to a wait.
  bool isCompleted() override {
    nudge();
    return CompletableWork::isCompleted();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    nudge();
    return CompletableWork::getFuture();
  }

  /// Its number among the worker's jobs, told before anybody can wait for it.
  void set_number(uint64_t number) { number_ = number; }

 private:
  void nudge() const {
    if (const auto worker = worker_.lock()) worker->nudge();
  }

  std::weak_ptr<Worker> worker_;  // its jobs hold works
  bool waiter_may_;
  std::chrono::milliseconds own_limit_;
  uint64_t number_ = 0;
};

}  // namespace accelerate::comm

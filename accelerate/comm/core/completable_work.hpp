// SPDX-License-Identifier: Apache-2.0
// Handle of an operation of the library's own backends.
#pragma once

#include <ATen/core/ivalue.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "accelerate/comm/core/connection.hpp"

namespace accelerate::comm {

/// Profiler title of an MPI operation, or null if no profiler records.
[[nodiscard]] const char* title_of(c10d::OpType type);

/// For an operation that only a wait completes: waits for it and returns its completed future, which has the result or
/// the exception.
[[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> future_after_wait(c10d::Work& work,
                                                                        std::chrono::milliseconds timeout);

/// Finished by the thread that executes the operation. Keeps its tensors alive until then.
class CompletableWork : public c10d::Work {
 public:
  CompletableWork(c10d::OpType type, std::vector<at::Tensor> kept)
      : Work(-1, type, title_of(type)), tensors_(std::move(kept)) {}

  /// A timeout of 0 means no deadline, as in c10d.
  /// \throws DeadlineExceeded, or the exception of the operation.
  bool wait(std::chrono::milliseconds timeout) override {
    const bool limited = timeout > std::chrono::milliseconds(0);
    const auto now = std::chrono::steady_clock::now();
    if (!ended_by(limited ? now + timeout : std::chrono::steady_clock::time_point::max())) throw DeadlineExceeded();
    return true;
  }

  /// Waits until the operation ends. Returns false at the deadline.
  /// \throws the exception of the operation.
  bool ended_by(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    const auto over = [this] { return completed_; };
    if (deadline == std::chrono::steady_clock::time_point::max()) {
      cv_.wait(lock, over);
    } else if (!cv_.wait_until(lock, deadline, over)) {
      return false;
    }
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }

  std::vector<at::Tensor> result() override { return tensors_; }
  [[nodiscard]] const std::vector<at::Tensor>& tensors() const { return tensors_; }

  /// Created on first use, because callers usually only wait for the operation.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::unique_lock lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    auto future = future_;
    const bool too_late_for_end = completed_;
    lock.unlock();
    if (too_late_for_end) complete(*future);
    return future;
  }

  /// Marks the operation as complete. A second call has no effect.
  void end(std::exception_ptr error = nullptr) {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      const std::lock_guard lock(mutex_);
      if (completed_) return;
      exception_ = std::move(error);
      completed_ = true;
      future = future_;
    }
    if (recordFunctionEndCallback_) std::exchange(recordFunctionEndCallback_, nullptr)();
    cv_.notify_all();
    if (future) complete(*future);
  }

 private:
  /// Called without the lock by the later of two events, the end of the operation and the creation of the future,
  /// because callbacks may use this object.
  void complete(c10::ivalue::Future& future) const {
    if (exception_) {
      future.setError(exception_);
    } else {
      future.markCompleted(c10::IValue(tensors_));
    }
  }

  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace accelerate::comm

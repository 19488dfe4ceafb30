// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/queue.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include <thread>
#include <utility>

namespace stand_in {

uint64_t Queue::push(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(started_, true)) std::thread([this] { work(); }).detach();  // queues are never destroyed
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++issued_;
}

void Queue::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, upto = issued_] { return finished_ >= upto; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool Queue::idle() {
  const std::lock_guard lock(mutex_);
  return finished_ == issued_;
}

uint64_t Queue::issued() {
  const std::lock_guard lock(mutex_);
  return issued_;
}

void Queue::work() {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !jobs_.empty(); });
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr thrown;
    try {
      job();
    } catch (...) {
      thrown = std::current_exception();
    }
    job = nullptr;  // its resources are released before waiters are notified
    lock.lock();
    if (thrown && !error_) error_ = std::move(thrown);
    ++finished_;
    changed_.notify_all();
  }
}

}  // namespace stand_in

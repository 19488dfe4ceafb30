// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/worker.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace accelerate::comm {

/// Shared with the thread, which may outlive the Worker.
struct Worker::State {
  std::mutex mutex;
  std::condition_variable work_came;
  std::condition_variable ended;
  std::deque<Job> jobs;
  uint64_t begun = 0;      // jobs that left the queue, which is the last one's number
  bool under_way = false;  // on the thread, or on one that took over
  std::thread thread;
  bool started = false;
  bool stopping = false;
  bool abandoned = false;
  bool over = false;

  void carry_out_next(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    auto job = std::move(jobs.front());
    jobs.pop_front();
    ++begun;
    under_way = true;
    lock.unlock();
    job({.deadline = deadline});
    job = nullptr;  // its tensors go before the next wait
    lock.lock();
    under_way = false;
  }

  void loop() {
    std::unique_lock lock(mutex);
    while (true) {
      work_came.wait(lock, [this] { return !under_way && (stopping || !jobs.empty()); });
      if (jobs.empty() || abandoned) break;
      carry_out_next(lock, Deadline::max());
    }
    over = true;
    ended.notify_all();
  }
};

Worker::Worker() : state_(std::make_shared<State>()) {}

Worker::~Worker() { stop(std::chrono::milliseconds(0)); }

uint64_t Worker::push(Job job, bool wake) {
  uint64_t number = 0;
  {
    std::unique_lock lock(state_->mutex);
    if (state_->abandoned) {
      lock.unlock();
      job({.comes = false});
      return number;
    }
    if (!state_->started) {
      state_->thread = std::thread([state = state_] { state->loop(); });
      state_->started = true;
    }
    state_->jobs.push_back(std::move(job));
    number = state_->begun + state_->jobs.size();
  }
  if (wake) state_->work_came.notify_one();  // unlocked, so that the thread does not wake only to wait for the mutex
  return number;
}

bool Worker::take_over(uint64_t number, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  if (state_->under_way || state_->jobs.empty() || number != state_->begun + 1) return false;
  state_->carry_out_next(lock, deadline);
  const bool more = state_->stopping || !state_->jobs.empty();
  lock.unlock();
  if (more) state_->work_came.notify_one();
  return true;
}

bool Worker::stop(std::chrono::milliseconds patience) noexcept {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  if (!state_->started) return true;
  if (!state_->thread.joinable()) return state_->over;
  state_->work_came.notify_all();
  const bool over =
      state_->abandoned ? state_->over : state_->ended.wait_for(lock, patience, [this] { return state_->over; });
  lock.unlock();
  if (over) {
    state_->thread.join();
  } else {
    state_->thread.detach();
  }
  return over;
}

void Worker::abandon() noexcept {
  std::deque<Job> left;
  {
    const std::lock_guard lock(state_->mutex);
    state_->abandoned = true;
    state_->stopping = true;
    left.swap(state_->jobs);
  }
  state_->work_came.notify_all();
  for (const Job& job : left) job({.comes = false});
}

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/worker.hpp"

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
  std::thread thread;
  bool started = false;
  bool stopping = false;
  bool abandoned = false;
  bool over = false;

  void loop() {
    std::unique_lock lock(mutex);
    while (true) {
      work_came.wait(lock, [this] { return stopping || !jobs.empty(); });
      if (jobs.empty() || abandoned) break;
      auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job(Turn::come);
      job = nullptr;  // its tensors go before the next wait
      lock.lock();
    }
    over = true;
    ended.notify_all();
  }
};

Worker::Worker() : state_(std::make_shared<State>()) {}

Worker::~Worker() { stop(std::chrono::milliseconds(0)); }

void Worker::push(Job job) {
  {
    std::unique_lock lock(state_->mutex);
    if (state_->abandoned) {
      lock.unlock();
      return job(Turn::never);
    }
    if (!state_->started) {
      state_->thread = std::thread([state = state_] { state->loop(); });
      state_->started = true;
    }
    state_->jobs.push_back(std::move(job));
  }
  state_->work_came.notify_one();  // unlocked, so that the thread does not wake only to wait for the mutex
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
  for (const Job& job : left) job(Turn::never);
}

}  // namespace accelerate::comm

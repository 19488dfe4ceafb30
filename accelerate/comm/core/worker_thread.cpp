// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/worker_thread.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace accelerate::comm {
namespace {

/// Time for an expired job to report the missing ranks.
constexpr std::chrono::seconds kDiagnosisTime{1};

}  // namespace

/// Shared with the thread, which may outlive the WorkerThread.
struct WorkerThread::State {
  explicit State(std::chrono::milliseconds own_patience) : patience(own_patience) {}

  const std::chrono::milliseconds patience;
  std::mutex mutex;
  std::condition_variable work_came;
  std::condition_variable ended;
  struct Queued {
    Job job;
    bool thread_only;
  };
  std::deque<Queued> jobs;
  uint64_t begun = 0;         // number of jobs taken from the queue, equal to the number of the last one
  bool under_way = false;     // a job runs, on the worker thread or on a caller's
  std::thread::id carrier{};  // thread that runs the job
  std::atomic<Deadline> job_deadline{Deadline::max()};
  std::thread thread;
  bool started = false;
  bool stopping = false;
  bool abandoned = false;
  bool over = false;

  void carry_out_next(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    auto job = std::move(jobs.front().job);
    jobs.pop_front();
    ++begun;
    under_way = true;
    carrier = std::this_thread::get_id();
    job_deadline = deadline;
    lock.unlock();
    job({.job_deadline = &job_deadline});
    job = nullptr;  // releases its tensors before the next wait
    lock.lock();
    under_way = false;
  }

  [[nodiscard]] Deadline own_deadline() const {
    const auto now = std::chrono::steady_clock::now();
    return patience < Deadline::max() - now ? now + patience : Deadline::max();
  }

  void loop() {
    std::unique_lock lock(mutex);
    while (true) {
      work_came.wait(lock, [this] { return !under_way && (stopping || !jobs.empty()); });
      if (jobs.empty() || abandoned) break;
      carry_out_next(lock, own_deadline());
    }
    over = true;
    ended.notify_all();
  }

  [[nodiscard]] bool calls_from_its_job() const { return under_way && carrier == std::this_thread::get_id(); }
};

WorkerThread::WorkerThread(std::chrono::milliseconds patience) : state_(std::make_shared<State>(patience)) {}

WorkerThread::~WorkerThread() { stop(std::chrono::milliseconds(0)); }

uint64_t WorkerThread::push(Job job, ExecutionPolicy carrier) {
  uint64_t number = 0;
  {
    std::unique_lock lock(state_->mutex);
    if (state_->abandoned) {
      lock.unlock();
      job({.should_run = false});
      return number;
    }
    if (!state_->started) {
      state_->thread = std::thread([state = state_] { state->loop(); });
      state_->started = true;
    }
    state_->jobs.push_back({std::move(job), carrier == ExecutionPolicy::thread});
    number = state_->begun + state_->jobs.size();
  }
  // Unlocked, so that the thread does not wake only to wait for the mutex.
  if (carrier != ExecutionPolicy::waiting_caller) state_->work_came.notify_one();
  return number;
}

bool WorkerThread::run_inline(uint64_t number, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  bool mine = false;
  const auto may_begin = [this] {
    return !state_->under_way && !state_->jobs.empty() && !state_->jobs.front().thread_only;
  };
  while (may_begin() && state_->begun < number) {
    mine = state_->begun + 1 == number;
    state_->carry_out_next(lock, deadline);
  }
  const bool more = state_->stopping || !state_->jobs.empty();
  lock.unlock();
  if (more) state_->work_came.notify_one();
  return mine;
}

void WorkerThread::wake_thread() noexcept { state_->work_came.notify_one(); }

void WorkerThread::expire(uint64_t number) noexcept {
  const std::lock_guard lock(state_->mutex);
  if (state_->under_way && state_->begun <= number) state_->job_deadline = Deadline::min();
}

bool WorkerThread::stop(std::chrono::milliseconds patience) noexcept {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  if (!state_->started) return true;
  if (!state_->thread.joinable()) return state_->over;
  state_->work_came.notify_all();
  const auto is_over = [this] { return state_->over; };
  const bool from_job = state_->calls_from_its_job();
  const bool idle = !state_->under_way && state_->jobs.empty();
  if (idle) {
    state_->ended.wait(lock, is_over);
  } else if (!from_job && !state_->abandoned) {
    state_->ended.wait_for(lock, patience, is_over);
  }
  const bool over = state_->over;
  lock.unlock();
  if (over) {
    state_->thread.join();
  } else {
    state_->thread.detach();
  }
  return over || from_job;
}

void WorkerThread::abandon() noexcept {
  std::deque<State::Queued> left;
  {
    const std::lock_guard lock(state_->mutex);
    state_->abandoned = true;
    state_->stopping = true;
    left.swap(state_->jobs);
    state_->job_deadline = Deadline::min();
  }
  state_->work_came.notify_all();
  for (const auto& each : left) each.job({.should_run = false});
}

bool CallerRunsWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout > std::chrono::milliseconds(0) ? timeout : own_limit_;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const auto worker = worker_.lock();
  if (worker && caller_may_run_ && !CompletableWork::isCompleted()) worker->run_inline(number_, deadline);
  if (ended_by(deadline)) return true;
  if (worker) worker->expire(number_);
  if (ended_by(deadline + kDiagnosisTime)) return true;
  throw DeadlineExceeded();
}

bool CallerRunsWork::isCompleted() {
  wake_thread();
  return CompletableWork::isCompleted();
}

c10::intrusive_ptr<c10::ivalue::Future> CallerRunsWork::getFuture() {
  wake_thread();
  return CompletableWork::getFuture();
}

void CallerRunsWork::wake_thread() const {
  if (const auto worker = worker_.lock()) worker->wake_thread();
}

c10::intrusive_ptr<c10d::Work> submit_operation(const std::shared_ptr<WorkerThread>& worker, c10d::OpType type,
                                                std::vector<at::Tensor> tensors, bool asynchronous,
                                                std::chrono::milliseconds timeout,
                                                std::function<void(const TaskContext&)> operation) {
  using enum WorkerThread::ExecutionPolicy;
  auto work = c10::make_intrusive<CallerRunsWork>(type, std::move(tensors), worker, /*waiter_may=*/true, timeout);
  auto job = [work, operation = std::move(operation)](const TaskContext& context) {
    try {
      if (!context.should_run) throw PeerLost("an earlier operation was abandoned");
      operation(context);
      work->end();
    } catch (...) {
      work->end(std::current_exception());
    }
  };
  work->set_number(worker->push(std::move(job), asynchronous ? any_thread : waiting_caller));
  return work;
}

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/workers.hpp"

#include <ATen/core/PhiloxRNGEngine.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "accelerate/base/exception_text.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/data/prefetch.hpp"

namespace accelerate::data {
namespace {

thread_local std::optional<WorkerInfo> this_worker;
thread_local std::atomic<int64_t>* this_sample = nullptr;  // sample of the worker's current read
thread_local int64_t this_ahead = 0;                       // batches that the worker's pass may read ahead

constexpr int64_t kMaxListed = 8;

/// Lists the first numbers: "3, 17, 4 ... (64 samples)".
std::string listed(const at::Tensor& indices) {
  const auto* const first = indices.const_data_ptr<int64_t>();
  auto text = fmt::format("{}", fmt::join(first, first + std::min(indices.numel(), kMaxListed), ", "));
  if (indices.numel() > kMaxListed) text += fmt::format(" ... ({} samples)", indices.numel());
  return text;
}

}  // namespace

std::optional<WorkerInfo> get_worker_info() { return this_worker; }

int64_t prefetched_batches() { return this_ahead; }

void now_reading(int64_t sample) {
  if (this_sample != nullptr) this_sample->store(sample, std::memory_order_relaxed);
}

SampleNamed::SampleNamed(int64_t sample) : slot_(this_sample) {
  now_reading(sample);
  this_sample = nullptr;
}

SampleNamed::~SampleNamed() { this_sample = slot_; }

// Philox's counter contains the pass in a range that sample numbers (sample_generator) do not reach. The sum with a
// worker's id fits an int64, as PyTorch's does.
uint64_t base_seed_of(uint64_t seed, int64_t epoch, int64_t rank) {
  at::Philox4_32 engine(seed, ~static_cast<uint64_t>(rank), static_cast<uint64_t>(epoch) << 32U);
  const uint64_t high = engine();
  return high >> 2U << 32U | engine();
}

ReadQueue::ReadQueue(int64_t batches, int64_t capacity, Read read, uint64_t base_seed)
    : batches_(batches), read_(std::move(read)), base_seed_(base_seed), ring_(static_cast<size_t>(capacity)) {}

void ReadQueue::run(WorkerInfo worker) {
  worker.seed = base_seed_ + static_cast<uint64_t>(worker.id);
  this_worker = worker;
  std::unique_lock lock(mutex_);
  this_ahead = static_cast<int64_t>(ring_.size());
  while (true) {
    may_read_.wait(lock, [this] {
      return cancelled_ || next_ == batches_ || next_ < taken_ + static_cast<int64_t>(ring_.size());
    });
    if (cancelled_ || next_ == batches_) return;
    const int64_t number = next_++;
    Entry& entry = ring_[index_of(number)];
    entry.reader = {worker.id, Clock::now()};
    entry.sample = -1;
    this_sample = &entry.sample;
    lock.unlock();
    std::exception_ptr failure;
    try {
      read_(number, index_of(number));
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    entry.ready = true;
    entry.since = Clock::now();
    entry.failure = failure;
    is_there_.notify_all();
  }
}

std::optional<ReadQueue::Ready> ReadQueue::wait(int64_t number, std::optional<Clock::duration> timeout) {
  std::unique_lock lock(mutex_);
  Entry& entry = ring_[index_of(number)];
  const auto is_ready = [&] { return entry.ready; };
  if (timeout) {
    if (!is_there_.wait_for(lock, *timeout, is_ready)) return std::nullopt;
  } else {
    is_there_.wait(lock, is_ready);
  }
  if (!entry.failure) return Ready{index_of(number), entry.since};
  const auto failure = std::exchange(entry.failure, nullptr);
  entry.ready = false;
  ++taken_;
  may_read_.notify_all();
  std::rethrow_exception(failure);
}

void ReadQueue::done() {
  const std::lock_guard lock(mutex_);
  ring_[index_of(taken_++)].ready = false;
  may_read_.notify_one();
}

ReadQueue::Reader ReadQueue::reader_of(int64_t number) {
  const std::lock_guard lock(mutex_);
  if (number >= next_) return {};
  const Entry& entry = ring_[index_of(number)];
  return {entry.reader.worker, entry.reader.since, entry.sample};
}

void ReadQueue::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  may_read_.notify_all();
}

bool ReadQueue::cancelled() {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

struct WorkerPool::State {
  std::mutex mutex;
  std::condition_variable has_work;
  std::shared_ptr<ReadQueue> queue;
  int64_t turn = 0;  // number of the queue, counted from 1
  bool stop = false;
  bool given_up = false;
  std::vector<std::thread> threads;

  void work(const WorkerInfo& worker) {
    std::unique_lock lock(mutex);
    for (int64_t served = 0;;) {
      has_work.wait(lock, [&] { return stop || turn != served; });
      if (stop) return;
      served = turn;
      const auto mine = queue;
      lock.unlock();
      mine->run(worker);
      this_sample = nullptr;
      lock.lock();
    }
  }
};

WorkerPool::WorkerPool() : state_(std::make_shared<State>()) {}

// If a thread cannot be created, the destructor ends the existing ones.
WorkerPool::WorkerPool(int64_t num_workers) : WorkerPool() {
  for (int64_t id = 0; id < num_workers; ++id) {
    try {
      state_->threads.emplace_back([state = state_, id, num_workers] { state->work({id, num_workers}); });
    } catch (const std::system_error& problem) {
      base::fail(ErrorKind::environment, {}, "loader",
                 "num_workers is {}, but the system provides {} threads: {}; use fewer workers, or raise the limits of "
                 "processes and memory (ulimit -u, ulimit -v)",
                 num_workers, id, problem.code().message());
    }
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    if (state_->queue) state_->queue->cancel();
  }
  state_->has_work.notify_all();
  for (auto& thread : state_->threads) state_->given_up ? thread.detach() : thread.join();
  state_->threads.clear();
}

void WorkerPool::serve(std::shared_ptr<ReadQueue> queue) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue = std::move(queue);
    ++state_->turn;
  }
  state_->has_work.notify_all();
}

void WorkerPool::give_up() {
  const std::lock_guard lock(state_->mutex);
  state_->given_up = true;
}

std::shared_ptr<WorkerPool> LoaderWorkers::serve(const std::shared_ptr<ReadQueue>& queue, int64_t num_workers) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<WorkerPool> pool = pool_;
  const auto served = served_.lock();
  if (!pool || (served && !served->cancelled())) pool = std::make_shared<WorkerPool>(num_workers);
  if (!pool_) pool_ = pool;
  if (pool == pool_) served_ = queue;
  pool->serve(queue);
  return pool;
}

void LoaderWorkers::give_up() {
  const std::lock_guard lock(mutex_);
  pool_.reset();
}

namespace {

/// \param what  The batch, as named in the error.
std::exception_ptr slow(std::string_view what, std::string_view remedy, const ReadQueue::Reader& reader,
                        std::chrono::milliseconds timeout) try {
  const double limit = std::chrono::duration<double>(timeout).count();
  const double since = std::chrono::duration<double>(ReadQueue::Clock::now() - reader.since).count();
  if (reader.worker < 0) {
    base::fail(ErrorKind::data, {}, "loader",
               "{} was not begun within {:g} s (timeout): the workers still read batches of a pass that was left early",
               what, limit);
  }
  base::fail(ErrorKind::data, {}, "loader",
             "{} is not ready after {:g} s (timeout); worker {} has been reading it for {:.1f} s{}. {}", what, limit,
             reader.worker, since, reader.sample < 0 ? "" : fmt::format(", now sample {}", reader.sample), remedy);
} catch (const Error&) {
  return std::current_exception();
}

}  // namespace

std::exception_ptr slow_read(int64_t batch, const at::Tensor& indices, const ReadQueue::Reader& reader,
                             std::chrono::milliseconds timeout) {
  return slow(fmt::format("batch {} (samples {})", batch, listed(indices)),
              "Look at these samples, or give a longer timeout", reader, timeout);
}

std::exception_ptr slow_stream(int64_t batch, const ReadQueue::Reader& reader, std::chrono::milliseconds timeout) {
  return slow(fmt::format("batch {} of a stream, or the next one, which shows whether it is the last,", batch),
              "Check its source, or set a longer timeout", reader, timeout);
}

void log_failed_sample(std::string_view reader, int64_t sample, const std::exception_ptr& failure) {
  base::log(base::LogLevel::error, {}, "{}: sample {} could not be read: {}", reader, sample,
            base::exception_summary(failure));
}

void log_failed_read(int64_t batch, const at::Tensor& indices, const std::exception_ptr& failure) {
  base::log(base::LogLevel::error, {}, "loader: batch {} (samples {}) could not be read: {}", batch, listed(indices),
            base::exception_summary(failure));
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// Threads that read batches ahead of the loop, in order.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

/// The reading thread, as in torch.utils.data.get_worker_info.
struct WorkerInfo {
  int64_t id = 0;
  int64_t num_workers = 0;
  /// The pass's base seed + id. Its numbers change with the number of workers and their timing, unlike those of
  /// sample_generator.
  uint64_t seed = 0;
};
/// Unset in a thread that is no loader's.
[[nodiscard]] std::optional<WorkerInfo> get_worker_info();
/// Batches of its pass that may be read and not yet taken; 0 in a thread that is no loader's.
[[nodiscard]] int64_t batches_read_ahead();
/// For sources that read one sample after another: sets the sample that a worker reads now, which the error about a
/// hanging read names. Has no effect elsewhere.
void now_reading(int64_t sample);
/// Like now_reading(), and prevents calls in its scope from naming another sample: a stream may read a source with
/// other numbers.
class SampleNamed {
 public:
  explicit SampleNamed(int64_t sample);
  ~SampleNamed();
  SampleNamed(const SampleNamed&) = delete;
  SampleNamed& operator=(const SampleNamed&) = delete;

 private:
  std::atomic<int64_t>* slot_;
};
/// Base seed of the workers of one pass: different in each epoch, and equal after a resume with the same seed, which is
/// either given or, for a shuffling loader, part of its state.
///
/// \param seed  The loader's.
/// \param rank  A rank that reads for itself; 0 if all ranks read the same.
[[nodiscard]] uint64_t base_seed_of(uint64_t seed, int64_t epoch, int64_t rank);

/// One pass's batches between the workers that read them and the loop that takes them. At most `capacity` are read and
/// not yet taken.
class ReadQueue {
 public:
  using Clock = std::chrono::steady_clock;
  /// Reads batch `number` to that index of its ring buffer. Called on the workers, each number once.
  using Read = std::function<void(int64_t number, size_t index)>;

  /// \param base_seed  Of the workers.
  ReadQueue(int64_t batches, int64_t capacity, Read read, uint64_t base_seed = 0);

  /// On a worker: reads until there is nothing left to read, or the pass is over.
  void run(WorkerInfo worker);

  struct Ready {
    size_t index;
    Clock::time_point since;
  };
  /// On the loop, for 0, 1, 2 ...: waits until batch `number` is there. Its index is free again with done().
  /// Rethrows what reading it threw. returns   none: it is not there within the timeout
  std::optional<Ready> wait(int64_t number, std::optional<Clock::duration> timeout);
  void done();
  /// Who reads that batch, and since when.
  struct Reader {
    int64_t worker = -1;  ///< none does yet
    Clock::time_point since{};
    int64_t sample = -1;  ///< sample that it reads now, if the source reports it
  };
  [[nodiscard]] Reader reader_of(int64_t number);
  /// The pass is over: nothing more is begun.
  void cancel();
  [[nodiscard]] bool cancelled();

 private:
  struct Entry {
    bool ready = false;
    Clock::time_point since{};
    std::exception_ptr failure;
    Reader reader;
    std::atomic<int64_t> sample{-1};  // of the reader; written without the lock
  };
  [[nodiscard]] size_t index_of(int64_t number) const { return static_cast<size_t>(number) % ring_.size(); }

  const int64_t batches_;
  const Read read_;
  const uint64_t base_seed_;
  std::mutex mutex_;
  std::condition_variable may_read_, is_there_;
  std::vector<Entry> ring_;
  int64_t next_ = 0;   // to be read
  int64_t taken_ = 0;  // by the loop
  bool cancelled_ = false;
};

/// Threads that live as long as their loader and serve one pass after another.
class WorkerPool {
 public:
  /// Throws Error (environment) where the system gives no such number of threads.
  explicit WorkerPool(int64_t num_workers);
  /// Waits for reads under way, but not for one that was given up.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// They turn to it when they are through with what they read now.
  void serve(std::shared_ptr<ReadQueue> queue);
  /// A read does not come back: nobody waits for these threads any more.
  void give_up();

 private:
  struct State;
  WorkerPool();
  std::shared_ptr<State> state_;
};

/// Error (data): a worker has been reading a batch for longer than the loader's timeout.
[[nodiscard]] std::exception_ptr slow_read(int64_t batch, const at::Tensor& indices, const ReadQueue::Reader& reader,
                                           std::chrono::milliseconds timeout);
/// The same of a stream, whose batches are not known before they are read.
[[nodiscard]] std::exception_ptr slow_stream(int64_t batch, const ReadQueue::Reader& reader,
                                             std::chrono::milliseconds timeout);
/// A line that names the sample, for what a user's function throws says nothing of it.
///
/// reader   who called it, a name that the user knows
void log_failed_sample(std::string_view reader, int64_t sample, const std::exception_ptr& failure);
/// The same for those who only know the batch.
void log_failed_read(int64_t batch, const at::Tensor& indices, const std::exception_ptr& failure);

}  // namespace accelerate::data

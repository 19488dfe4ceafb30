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

/// Identifies a worker thread, as torch.utils.data.get_worker_info does.
struct WorkerInfo {
  int64_t id = 0;
  int64_t num_workers = 0;
  /// The pass's base seed + id. Its numbers change with the number of workers and their timing, unlike those of
  /// sample_generator.
  uint64_t seed = 0;
};
/// Returns nothing if the calling thread is not a loader's worker.
[[nodiscard]] std::optional<WorkerInfo> get_worker_info();
/// Maximum number of batches of this pass that are read and not yet taken; 0 if the calling thread is not a worker.
[[nodiscard]] int64_t prefetched_batches();
/// Sets the sample that the calling worker reads now, for the timeout error. For sources that read one sample at a
/// time; has no effect outside workers.
void now_reading(int64_t sample);
/// Like now_reading(), and disables now_reading() in its scope, because a stream may read a source with other sample
/// numbers.
class SampleNamed {
 public:
  explicit SampleNamed(int64_t sample);
  ~SampleNamed();
  SampleNamed(const SampleNamed&) = delete;
  SampleNamed& operator=(const SampleNamed&) = delete;

 private:
  std::atomic<int64_t>* slot_;
};
/// Base seed of the workers of one pass. It differs between epochs, and is the same after a resume with the same seed.
/// That seed is either an option or, for a shuffling loader, part of its state.
///
/// \param seed  Seed of the loader.
/// \param rank  This rank if it reads its own samples; 0 if all ranks read the same samples.
[[nodiscard]] uint64_t base_seed_of(uint64_t seed, int64_t epoch, int64_t rank);

/// Ring buffer of one pass's batches between the workers and the loop. At most `capacity` batches are read and not yet
/// taken.
class ReadQueue {
 public:
  using Clock = std::chrono::steady_clock;
  /// Reads batch `number` to `index` of the ring buffer. Called on the workers, once per number.
  using Read = std::function<void(int64_t number, size_t index)>;

  /// \param base_seed  Base seed of the workers.
  ReadQueue(int64_t batches, int64_t capacity, Read read, uint64_t base_seed = 0);

  /// On a worker: reads batches until all are read or the pass is cancelled.
  void run(WorkerInfo worker);

  struct Ready {
    size_t index;
    Clock::time_point since;
  };
  /// On the loop, for 0, 1, 2 ...: waits for batch `number`. done() frees its index.
  ///
  /// \returns nothing after the timeout.
  /// \throws the exception of the read, if the read failed.
  std::optional<Ready> wait(int64_t number, std::optional<Clock::duration> timeout);
  void done();
  /// Worker that reads a batch, and the start time of the read.
  struct Reader {
    int64_t worker = -1;  ///< -1 if no worker has begun the read
    Clock::time_point since{};
    int64_t sample = -1;  ///< current sample, if the source reports it; otherwise -1
  };
  [[nodiscard]] Reader reader_of(int64_t number);
  /// Ends the pass: the workers begin no further read.
  void cancel();
  [[nodiscard]] bool cancelled();

 private:
  struct Entry {
    bool ready = false;
    Clock::time_point since{};
    std::exception_ptr failure;
    Reader reader;
    std::atomic<int64_t> sample{-1};  // written by the reader without the lock
  };
  [[nodiscard]] size_t index_of(int64_t number) const { return static_cast<size_t>(number) % ring_.size(); }

  const int64_t batches_;
  const Read read_;
  const uint64_t base_seed_;
  std::mutex mutex_;
  std::condition_variable may_read_, is_there_;
  std::vector<Entry> ring_;
  int64_t next_ = 0;   // next batch to read
  int64_t taken_ = 0;  // number of batches that the loop took
  bool cancelled_ = false;
};

/// Threads with the lifetime of their loader. They serve one pass after another.
class WorkerPool {
 public:
  /// \throws Error (environment) if the system cannot create that number of threads.
  explicit WorkerPool(int64_t num_workers);
  /// Joins the threads after their current reads. After give_up(), it detaches them.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Switches the workers to `queue` as soon as they finish their current reads.
  void serve(std::shared_ptr<ReadQueue> queue);
  /// Makes the destructor detach the threads, because a read does not return.
  void give_up();

 private:
  struct State;
  WorkerPool();
  std::shared_ptr<State> state_;
};

/// Error (data) for a worker that has been reading a batch for longer than the loader's timeout.
[[nodiscard]] std::exception_ptr slow_read(int64_t batch, const at::Tensor& indices, const ReadQueue::Reader& reader,
                                           std::chrono::milliseconds timeout);
/// The same for a stream, where the sample numbers of a batch are unknown before the read.
[[nodiscard]] std::exception_ptr slow_stream(int64_t batch, const ReadQueue::Reader& reader,
                                             std::chrono::milliseconds timeout);
/// Logs the sample, because the exception of a user-defined function does not name it.
///
/// \param reader  Name of the calling function, as users know it.
void log_failed_sample(std::string_view reader, int64_t sample, const std::exception_ptr& failure);
/// The same for readers that only know the batch.
void log_failed_read(int64_t batch, const at::Tensor& indices, const std::exception_ptr& failure);

}  // namespace accelerate::data

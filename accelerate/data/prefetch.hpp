// SPDX-License-Identifier: Apache-2.0
// A pass with batches that workers read ahead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/data/workers.hpp"

namespace accelerate::data {

template <typename AnyBatch>
class Prefetch {
 public:
  /// \param read       Returns the pass's batch of that number; called on the workers, once per number.
  /// \param batches    Number of batches of the pass.
  /// \param ahead      Maximum number of batches that are read and not yet taken.
  /// \param base_seed  Base seed of the workers.
  Prefetch(std::function<AnyBatch(int64_t number)> read, int64_t batches, int64_t ahead, uint64_t base_seed)
      : ring_(std::make_shared<Ring>(static_cast<size_t>(ahead))) {
    queue_ = std::make_shared<ReadQueue>(
        batches, ahead,
        [ring = ring_, read = std::move(read)](int64_t number, size_t index) { (*ring)[index].emplace(read(number)); },
        base_seed);
  }
  ~Prefetch() { queue_->cancel(); }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  [[nodiscard]] const std::shared_ptr<ReadQueue>& queue() const { return queue_; }

  struct Taken {
    AnyBatch batch;
    ReadQueue::Clock::time_point since;
  };
  /// Takes batch `number`, in order. Returns nothing after the timeout.
  std::optional<Taken> take(int64_t number, std::optional<ReadQueue::Clock::duration> timeout) {
    const auto ready = queue_->wait(number, timeout);
    if (!ready) return std::nullopt;
    std::optional<Taken> taken(Taken{std::move(*(*ring_)[ready->index]), ready->since});
    (*ring_)[ready->index].reset();
    queue_->done();
    return taken;
  }

 private:
  using Ring = std::vector<std::optional<AnyBatch>>;
  std::shared_ptr<Ring> ring_;
  std::shared_ptr<ReadQueue> queue_;
};

/// Number of batches that `workers` threads may read ahead: `each` per worker, and at most `batches`.
[[nodiscard]] inline int64_t read_ahead_of(int64_t workers, int64_t each, int64_t batches) {
  const int64_t all = std::max<int64_t>(batches, 1);
  return each > all / workers ? all : workers * each;
}

/// The workers of a loader: one pool for consecutive passes. A pass that begins during another one has its own pool.
class LoaderWorkers {
 public:
  /// \returns the owner of the pool that serves the queue.
  [[nodiscard]] std::shared_ptr<WorkerPool> serve(const std::shared_ptr<ReadQueue>& queue, int64_t num_workers);
  /// The next pass uses other threads, because a read of these hangs.
  void give_up();

 private:
  std::mutex mutex_;
  std::shared_ptr<WorkerPool> pool_;
  std::weak_ptr<ReadQueue> served_;
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// The loader: reads this rank's batches of a source in the order of an epoch.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/loader_base.hpp"
#include "accelerate/data/loader_common.hpp"
#include "accelerate/data/prefetch.hpp"
#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Batches of one rank; each loop is a pass. Copies are handles of the same loader.
///
///   for (auto& [images, labels] : loader) ...      // epoch 0
///   for (auto& [images, labels] : loader) ...      // epoch 1, another order with shuffle
///
/// A loop may end early, loops may be nested (each begin() is a separate pass), and a pass may outlive its loader.
/// \note Not thread-safe.
template <typename AnyBatch>
class LoaderOf : public LoaderBase {
 public:
  class Iterator;

  /// \param source  Shared.
  /// \throws Error (usage) for a null pointer, a batch_size below 1, and options that exclude each other.
  LoaderOf(std::shared_ptr<const SourceOf<AnyBatch>> source, const LoaderOptions& options = {})
      : LoaderBase(checked(source).size(), options, checked(source).seeded()), source_(std::move(source)) {}

  /// Begins a pass of the next epoch: epoch() if no pass of it began yet, otherwise the one after it. A pass that ends
  /// early counts as its epoch.
  [[nodiscard]] Iterator begin() { return Iterator(std::make_shared<typename Iterator::State>(*this)); }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

  /// Returns a loader with the same settings and epoch that skips the first `batches` batches of this rank in every
  /// pass without reading them. Its size() is smaller accordingly. A loaded state beyond these batches resumes
  /// unchanged. This loader is unchanged.
  /// \throws Error (usage) for a negative number.
  [[nodiscard]] LoaderOf skip_first_batches(int64_t batches) const { return with(skipping(batches)); }

  /// Returns a loader whose next pass includes the batches that this loader's next pass skips or has consumed, to
  /// obtain padding. Returns nothing if there are no such batches.
  [[nodiscard]] std::optional<LoaderOf> with_skipped_front() const {
    auto core = core_with_skipped_front();
    return core ? std::optional(with(std::move(core))) : std::nullopt;
  }

  /// The source, for other loaders and for derived sources.
  [[nodiscard]] const std::shared_ptr<const SourceOf<AnyBatch>>& source() const { return source_; }

 private:
  [[nodiscard]] LoaderOf with(std::shared_ptr<Core> core) const {
    LoaderOf other = *this;
    other.core_ = std::move(core);
    other.workers_ = std::make_shared<LoaderWorkers>();
    return other;
  }
  static const SourceOf<AnyBatch>& checked(const std::shared_ptr<const SourceOf<AnyBatch>>& source) {
    check_source("loader", source != nullptr);
    return *source;
  }

  std::shared_ptr<const SourceOf<AnyBatch>> source_;
  std::shared_ptr<LoaderWorkers> workers_ = std::make_shared<LoaderWorkers>();
};

template <typename AnySource>
LoaderOf(std::shared_ptr<AnySource>) -> LoaderOf<typename AnySource::BatchType>;
template <typename AnySource>
LoaderOf(std::shared_ptr<AnySource>, const LoaderOptions&) -> LoaderOf<typename AnySource::BatchType>;

/// Loader of Batch, a pair of data and target.
using Loader = LoaderOf<Batch>;

/// One pass; its end compares equal to std::default_sentinel. Copies share the pass.
template <typename AnyBatch>
class LoaderOf<AnyBatch>::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = AnyBatch;
  using difference_type = std::ptrdiff_t;
  using pointer = AnyBatch*;
  using reference = AnyBatch&;

  /// The current batch. The caller may modify it and move from it.
  AnyBatch& operator*() const { return *state_->batch; }
  AnyBatch* operator->() const { return &**this; }
  Iterator& operator++() {
    state_->advance();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return state_->pass.ended(); }

  /// Position of this pass.
  [[nodiscard]] const state::BatchInfo& info() const { return state_->pass.info(); }
  /// Fingerprint of the order; equal on all ranks if their samplers return equal orders.
  [[nodiscard]] SamplerFingerprint sampler_fingerprint() const { return state_->pass.sampler_fingerprint(); }
  /// The batch that ++ will return, read now. Null at the end, while a worker still reads it, and if reading fails; ++
  /// then reports the failure.
  [[nodiscard]] AnyBatch* read_ahead() const { return state_->read_ahead(); }

 private:
  friend class LoaderOf;
  struct State {
    /// A batch that was read before it was requested.
    struct Ahead {
      std::optional<AnyBatch> batch{};
      std::exception_ptr failure{};  // set instead of the batch
      Pass::Clock::time_point since{};
    };

    SourcePtr<AnyBatch> source;
    std::chrono::milliseconds timeout;
    Pass pass;
    std::shared_ptr<LoaderWorkers> workers;
    std::shared_ptr<WorkerPool> pool;
    std::optional<Prefetch<AnyBatch>> prefetch;
    std::optional<Ahead> ahead;
    std::optional<AnyBatch> batch;
    std::exception_ptr gave_up;  // reading a batch failed, so the pass cannot continue

    explicit State(const LoaderOf& of)
        : source(of.source_),
          timeout(of.options().timeout),
          pass(of.core_, {.num_workers = workers_of(of), .single_reader = !source->thread_safe()}),
          workers(of.workers_) {
      if (const int64_t count = workers_of(of); count > 0) {
        prefetch.emplace([source = source, context = pass.context(), indices = pass.indices()](
                             int64_t number) { return read_from(*source, indices(number), context); },
                         pass.size(), read_ahead_of(count, of.options().prefetch_factor, pass.size()),
                         base_seed_of(of.seed(), pass.context().epoch, of.shard_spec().rank));
        pool = workers->serve(prefetch->queue(), count);
      }
      advance();
    }
    static int64_t workers_of(const LoaderOf& of) {
      return of.source_->thread_safe() ? of.options().num_workers : std::min<int64_t>(of.options().num_workers, 1);
    }
    void advance() {
      batch.reset();  // the next batch reuses its memory
      if (gave_up) std::rethrow_exception(gave_up);
      const at::Tensor indices = pass.advance();
      if (!indices.defined()) return;
      try {
        if (ahead) {
          take_ahead();
        } else if (prefetch) {
          take(indices);
        } else {
          read(indices);
        }
      } catch (const Error&) {  // already has its context
        throw;
      } catch (...) {
        log_failed_read(pass.info().index, indices, std::current_exception());
        throw;
      }
    }
    void read(const at::Tensor& indices) {
      batch.emplace(read_from(*source, indices, pass.context()));
      pass.arrived();
    }
    void take(const at::Tensor& indices) {
      const int64_t number = pass.info().index;
      auto taken = prefetch->take(number, max_wait(timeout));
      if (!taken) {
        const auto reader = prefetch->queue()->reader_of(number);
        pool->give_up();
        workers->give_up();
        gave_up = slow_read(number, indices, reader, timeout);
        std::rethrow_exception(gave_up);
      }
      batch.emplace(std::move(taken->batch));
      pass.arrived(taken->since);
    }
    void take_ahead() {
      Ahead taken = std::move(*std::exchange(ahead, std::nullopt));
      if (taken.failure) std::rethrow_exception(taken.failure);
      batch.emplace(std::move(*taken.batch));
      pass.arrived(taken.since);
    }
    AnyBatch* read_ahead() {
      if (!ahead && !gave_up) prefetch_next();
      return ahead && ahead->batch ? &*ahead->batch : nullptr;
    }
    void prefetch_next() {
      const at::Tensor indices = pass.next_indices();
      if (!indices.defined()) return;
      const auto began = Pass::Clock::now();
      try {
        if (prefetch) {
          auto taken = prefetch->take(pass.info().index + 1, Pass::Clock::duration::zero());
          if (taken) ahead.emplace(Ahead{.batch = std::move(taken->batch), .since = taken->since});
          return;
        }
        auto beside = read_front(indices);
        if (!beside) return;
        ahead.emplace(Ahead{.batch = std::move(beside)});
      } catch (...) {  // includes a worker's lack of memory: a worker reads each batch once
        ahead.emplace(Ahead{.failure = std::current_exception()});
      }
      ahead->since = Pass::Clock::now();
      pass.waited(ahead->since - began);
    }
    /// Returns nothing if memory does not suffice for two batches. The next batch is then read after the current one is
    /// released.
    std::optional<AnyBatch> read_front(const at::Tensor& indices) const {
      try {
        return read_from(*source, indices, pass.context());
      } catch (const c10::OutOfMemoryError&) {
        return std::nullopt;
      }
    }
  };
  explicit Iterator(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// Loader of a stream: each rank receives its part of every window of world_size batches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/data/collate.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/loading_report.hpp"
#include "accelerate/data/prefetch.hpp"
#include "accelerate/data/stream.hpp"
#include "accelerate/data/stream_core.hpp"
#include "accelerate/data/stream_pass.hpp"

namespace accelerate::data {

/// A handle: copies refer to the same loader. After prepare(), rank 0 reads for all ranks, unless dispatch_batches is
/// off; then every rank reads the whole stream and keeps its part. Not thread-safe.
template <typename AnySample, typename Collate = DefaultCollate>
class StreamLoader {
 public:
  using BatchType = decltype(std::declval<const Collate&>()(std::declval<const std::vector<AnySample>&>()));
  static constexpr bool is_stream = true;
  static constexpr bool explains_empty_pass = true;
  class Iterator;

  /// \param collate  Makes a batch of a vector of samples.
  /// \throws Error (usage) for a null pointer, and for a batch_size below 1.
  explicit StreamLoader(StreamPtr<AnySample> stream, const StreamOptions& options = {}, Collate collate = {})
      : stream_(std::move(stream)),
        collate_(std::move(collate)),
        core_(std::make_shared<StreamCore>(options, checked().size(), checked().seeded())) {}

  /// Begins a pass of the next epoch. A pass that ends early counts as its epoch.
  [[nodiscard]] Iterator begin() { return Iterator(std::make_shared<typename Iterator::State>(*this)); }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

  void shard(const ShardSpec& shard_spec, const RankContext& place = {}) { core_->take(shard_spec, place); }
  [[nodiscard]] const ShardSpec& shard_spec() const { return core_->shard_spec; }
  [[nodiscard]] const StreamOptions& options() const { return core_->options; }
  /// Number of batches of this rank in a pass, if the length of the stream is known.
  [[nodiscard]] std::optional<int64_t> size() const {
    const auto samples = core_->known_samples();
    if (!samples) return std::nullopt;
    return std::max<int64_t>(ShardPlan(*samples, core_->shard_options()).size() - core_->skipped, 0);
  }
  /// Number of samples in a pass, if known.
  [[nodiscard]] std::optional<int64_t> sample_count() const { return core_->known_samples(); }
  [[nodiscard]] int64_t batch_size() const { return ShardPlan(0, core_->shard_options()).batch_size(); }
  [[nodiscard]] int64_t total_batch_size() const { return batch_size() * core_->shard_spec.world_size; }

  [[nodiscard]] int64_t epoch() const { return core_->epochs.epoch(); }
  /// \throws Error (usage) for a negative epoch.
  void set_epoch(int64_t epoch) { core_->set_epoch(epoch); }
  [[nodiscard]] uint64_t seed() const { return core_->seed(); }
  void set_seed(uint64_t seed) { core_->options.seed = seed; }
  /// True if the samples depend on the seed.
  [[nodiscard]] bool shuffles() const { return core_->seeded; }

  /// As LoaderBase::state. A resumed pass reads consumed samples again and drops them.
  [[nodiscard]] state::LoaderState state() const { return core_->state(); }
  void load_state(const state::LoaderState& state) { core_->load_state(state); }
  void set_position(const state::LoaderState& state) { core_->set_position(state); }
  /// As LoaderOf::skip_first_batches; the skipped samples are read and dropped.
  /// \throws Error (usage) for a negative number.
  [[nodiscard]] StreamLoader skip_first_batches(int64_t batches) const {
    check_skipped(batches);
    auto core = std::make_shared<StreamCore>(*core_);
    core->skip(batches);
    core->report = std::make_shared<LoadingReport>();
    return with(std::move(core));
  }

  /// See LoaderOf::with_skipped_front.
  [[nodiscard]] std::optional<StreamLoader> with_skipped_front() const {
    auto core = core_->with_skipped_front();
    return core ? std::optional(with(std::move(core))) : std::nullopt;
  }

  /// Waiting times of the latest pass.
  [[nodiscard]] LoadingReport report() const { return *core_->report; }

  bool operator==(const StreamLoader& other) const { return core_ == other.core_; }

 private:
  [[nodiscard]] StreamLoader with(std::shared_ptr<StreamCore> core) const {
    StreamLoader other = *this;
    other.core_ = std::move(core);
    other.workers_ = std::make_shared<LoaderWorkers>();
    return other;
  }
  [[nodiscard]] const StreamOf<AnySample>& checked() const {
    check_source("loader", stream_ != nullptr);
    return *stream_;
  }

  // Maximum number of batches for any prefetch_factor, because the length is unknown.
  static constexpr int64_t kMaxReadAhead = 4096;

  StreamPtr<AnySample> stream_;
  Collate collate_;
  std::shared_ptr<StreamCore> core_;
  std::shared_ptr<LoaderWorkers> workers_ = std::make_shared<LoaderWorkers>();
};

template <typename StreamPointer>
StreamLoader(StreamPointer) -> StreamLoader<typename StreamPointer::element_type::SampleType>;
template <typename StreamPointer>
StreamLoader(StreamPointer, const StreamOptions&) -> StreamLoader<typename StreamPointer::element_type::SampleType>;
template <typename StreamPointer, typename Collate>
StreamLoader(StreamPointer, const StreamOptions&, Collate)
    -> StreamLoader<typename StreamPointer::element_type::SampleType, Collate>;

/// One pass; its end compares equal to std::default_sentinel. Copies share the pass.
template <typename AnySample, typename Collate>
class StreamLoader<AnySample, Collate>::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = BatchType;
  using difference_type = std::ptrdiff_t;
  using pointer = BatchType*;
  using reference = BatchType&;

  BatchType& operator*() const { return *state_->batch; }
  BatchType* operator->() const { return &**this; }
  Iterator& operator++() {
    state_->advance();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return !state_->batch; }

  /// Position of this pass.
  [[nodiscard]] const state::BatchInfo& info() const { return state_->given.info; }
  /// The batch that ++ will return, collated now. Null at the end, and on a failure, which ++ then reports.
  [[nodiscard]] BatchType* read_ahead() const { return state_->read_ahead(); }

 private:
  friend class StreamLoader;
  struct State {
    using Given = StreamBatch<BatchType>;
    using Clock = LoadingTimer::Clock;

    StreamLoader loader;
    StreamCore::Beginning beginning;
    std::shared_ptr<CollatedStream<AnySample, Collate, BatchType>> stream;
    LoadingTimer clock;
    std::shared_ptr<WorkerPool> pool;
    std::optional<Prefetch<Given>> prefetch;
    int64_t pass = 0;
    int64_t number = 0;          // number of the next batch
    std::optional<Given> ahead;  // collated before it was requested
    std::optional<Clock::time_point> since;
    Given given;
    std::optional<BatchType> batch;
    std::exception_ptr gave_up;  // reading a batch failed, so the pass cannot continue

    explicit State(const StreamLoader& from)
        : loader(from),
          beginning(loader.core_->next_pass()),
          stream(std::make_shared<CollatedStream<AnySample, Collate, BatchType>>(*loader.stream_, beginning,
                                                                                 loader.collate_)),
          clock(LoadingReport{.num_workers = loader.options().num_workers, .single_reader = true}) {
      pass = loader.core_->begin(beginning);
      loader.core_->report = clock.report();
      try {
        start();
      } catch (...) {  // the destructor does not run for a throwing constructor
        loader.core_->release(pass, /*after_first_batch=*/true);
        throw;
      }
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() { loader.core_->release(pass, given.info.index == 0); }
    void start() {
      if (const int64_t workers = loader.options().num_workers; workers > 0) {
        constexpr int64_t kNobodyKnows = std::numeric_limits<int64_t>::max();
        // A reader may refer to the stream, and a hanging worker outlives the loader.
        prefetch.emplace([stream = stream, kept = loader.stream_](int64_t) { return stream->next(); }, kNobodyKnows,
                         std::min(loader.options().prefetch_factor, kMaxReadAhead),
                         // equal on all ranks, because all read the same samples
                         base_seed_of(loader.seed(), beginning.context.epoch, /*rank=*/0));
        pool = loader.workers_->serve(prefetch->queue(), workers);
      }
      advance();
    }
    void advance() {
      batch.reset();
      if (gave_up) std::rethrow_exception(gave_up);
      clock.start_request();
      if (!ahead) come(/*at_once=*/false);
      given = *std::exchange(ahead, std::nullopt);
      if (given.failure) std::rethrow_exception(given.failure);
      if (!given.batch) {
        if (given.info.index < 0) loader.core_->warn_about_empty_rank(beginning, given.read);
        loader.core_->end_pass(pass, beginning.context.epoch);
        return;
      }
      batch = std::exchange(given.batch, std::nullopt);
      loader.core_->advance_to(pass, given.delivered, given.complete);
      clock.arrived(given.samples, since);
    }
    BatchType* read_ahead() {
      if (!ahead && !given.info.last && !gave_up) {
        const auto began = Clock::now();
        come(/*at_once=*/true);
        if (ahead && !prefetch) {
          since = Clock::now();
          clock.waited(*since - began);
        }
      }
      return ahead && ahead->batch ? &*ahead->batch : nullptr;
    }
    /// \param at_once  If true, does nothing while the batch is still being read.
    void come(bool at_once) {
      since.reset();
      if (!prefetch) {
        ahead.emplace(stream->next());
        return;
      }
      const auto longest = at_once ? Clock::duration::zero() : max_wait(loader.options().timeout);
      auto taken = prefetch->take(number, longest);
      if (!at_once && number == 0 && !taken) taken = wait_for_first_batch(longest);
      if (taken) {
        ++number;
        since = taken->since;
        ahead.emplace(std::move(taken->batch));
      } else if (!at_once) {
        give_up();
      }
    }
    /// Waits for the first batch of a resumed pass. The worker first reads the consumed samples again, which may take
    /// longer than the timeout; only its progress must not stop for that long.
    auto wait_for_first_batch(std::optional<Clock::duration> longest) {
      decltype(prefetch->take(number, longest)) taken;
      const int64_t seen = beginning.origin + beginning.consumed;
      for (int64_t before = -1; !taken && before < seen && seen > 0;) {
        const int64_t now = prefetch->queue()->reader_of(number).sample;
        if (now == before) break;
        before = now;
        taken = prefetch->take(number, longest);
      }
      return taken;
    }
    [[noreturn]] void give_up() {
      gave_up = slow_stream(number, prefetch->queue()->reader_of(number), loader.options().timeout);
      pool->give_up();
      loader.workers_->give_up();
      std::rethrow_exception(gave_up);
    }
  };
  explicit Iterator(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace accelerate::data

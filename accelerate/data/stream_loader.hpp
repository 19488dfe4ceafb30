// SPDX-License-Identifier: Apache-2.0
// The loader of a stream: batches of what comes, each rank its part of every window of world_size batches.
#pragma once

#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/data/collate.hpp"
#include "accelerate/data/stream.hpp"
#include "accelerate/data/stream_core.hpp"

namespace accelerate::data {

/// One pass of one rank. Every rank reads the whole stream and keeps its samples; what is handed out was read one
/// window ahead, so that the end is known with the last batch.
template <typename AnySample>
class StreamPass {
 public:
  StreamPass(const StreamOf<AnySample>& stream, const StreamCore::Beginning& beginning)
      : reader_(stream.begin(beginning.context)),
        shard_(beginning.shard),
        round_(shard_.world_size * shard_.batch_size),
        read_(beginning.origin),
        origin_(beginning.origin) {
    for (int64_t i = 0; i < beginning.origin && reader_(); ++i) continue;
    for (int64_t left = beginning.consumed; left > 0 && !ended_; left -= round_) (void)read_window();
    handed_out_ = read_;
    ahead_ = read_window();
  }

  /// This rank's samples of the next window; none at the end.
  std::optional<std::vector<AnySample>> next() {
    if (!has_batch(ahead_)) {
      info_.last = false;
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    Window window = std::exchange(ahead_, {});
    handed_out_ += window.samples;
    const bool whole = window.samples == round_;
    if (whole) ahead_ = read_window();
    ++info_.index;
    info_.last = !has_batch(ahead_) && !failure_;
    if (info_.last) info_.remainder = plan().remainder();
    if (!whole) fill(window.mine);
    return std::move(window.mine);
  }

  [[nodiscard]] const state::BatchInfo& info() const { return info_; }
  /// Samples from the stream's beginning on that all ranks have been given.
  [[nodiscard]] int64_t handed_out() const { return handed_out_; }
  /// No rank gets anything more.
  [[nodiscard]] bool complete() const {
    return !failure_ && (ahead_.samples == 0 || (shard_.drop_last && ahead_.samples < round_));
  }

 private:
  struct Window {
    std::vector<AnySample> mine{};
    int64_t samples = 0;
  };

  [[nodiscard]] ShardPlan plan() const { return {read_ - origin_, shard_}; }

  [[nodiscard]] bool has_batch(const Window& window) const {
    if (window.samples == round_) return true;
    if (window.samples == 0 || shard_.drop_last) return false;
    return shard_.even_batches || shard_.rank * shard_.batch_size < window.samples;
  }

  Window read_window() {
    Window window;
    if (ended_) return window;
    const bool first = read_ == origin_;
    const int64_t begin = shard_.rank * shard_.batch_size;
    try {
      for (; window.samples < round_; ++window.samples) {
        auto sample = reader_();
        if (!sample) break;
        if (first && shard_.even_batches) front_.push_back(*sample);
        const bool is_mine = begin <= window.samples && window.samples < begin + shard_.batch_size;
        if (is_mine) window.mine.push_back(std::move(*sample));
      }
    } catch (...) {
      failure_ = std::current_exception();
      ended_ = true;
      return {};
    }
    ended_ = window.samples < round_;
    read_ += window.samples;
    return window;
  }

  /// The tail's samples of this rank, as many as in any other batch: the rest comes from the stream's front.
  void fill(std::vector<AnySample>& mine) {
    const ShardPlan whole = plan();
    const BatchRange range = whole.batch(whole.size() - 1);
    for (int64_t i = 0; i < range.filling; ++i) {
      mine.push_back(front_[static_cast<size_t>((range.fill_first + i) % range.pool)]);
    }
  }

  typename StreamOf<AnySample>::Reader reader_;
  ShardOptions shard_;
  int64_t round_;  // samples of a window
  int64_t read_;
  int64_t origin_;
  int64_t handed_out_ = 0;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::vector<AnySample> front_;
  Window ahead_;
  state::BatchInfo info_{};
};

/// A handle: copies refer to the same loader. prepare() has rank 0 read for all, unless dispatch_batches is off: then
/// every rank reads all and keeps its part.
template <typename AnySample, typename Collate = DefaultCollate>
class StreamLoader {
 public:
  using BatchType = decltype(std::declval<const Collate&>()(std::declval<const std::vector<AnySample>&>()));
  static constexpr bool is_stream = true;
  class Iterator;

  /// collate   makes a batch of a vector of samples
  /// Throws Error (usage) for a batch_size below 1.
  explicit StreamLoader(StreamPtr<AnySample> stream, const StreamOptions& options = {}, Collate collate = {})
      : stream_(std::move(stream)),
        collate_(std::move(collate)),
        core_(std::make_shared<StreamCore>(options, stream_->size(), stream_->seeded())) {}

  /// Begins the next epoch's pass; a pass that was left early counts as its epoch.
  [[nodiscard]] Iterator begin() { return Iterator(std::make_shared<typename Iterator::State>(*this)); }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

  void shard(const Share& share, const Place& place = {}) { core_->take(share, place); }
  [[nodiscard]] const Share& share() const { return core_->share; }
  [[nodiscard]] const StreamOptions& options() const { return core_->options; }
  /// Batches of this rank in a pass, where the stream's length is known.
  [[nodiscard]] std::optional<int64_t> size() const {
    if (!core_->samples) return std::nullopt;
    return ShardPlan(*core_->samples, core_->shard_options()).size();
  }
  /// Samples of a pass, where that is known.
  [[nodiscard]] std::optional<int64_t> sample_count() const { return core_->samples; }
  [[nodiscard]] int64_t batch_size() const { return ShardPlan(0, core_->shard_options()).batch_size(); }
  [[nodiscard]] int64_t total_batch_size() const { return batch_size() * core_->share.world_size; }

  [[nodiscard]] int64_t epoch() const { return core_->epochs.epoch(); }
  /// Throws Error (usage) for a negative one.
  void set_epoch(int64_t epoch) { core_->set_epoch(epoch); }
  [[nodiscard]] uint64_t seed() const { return core_->seed(); }
  void set_seed(uint64_t seed) { core_->options.seed = seed; }
  /// What comes depends on the seed.
  [[nodiscard]] bool shuffles() const { return core_->seeded; }

  /// As of LoaderBase; what was consumed is read again and dropped.
  [[nodiscard]] state::LoaderState state() const { return core_->state(); }
  void load_state(const state::LoaderState& state) { core_->load_state(state); }

  bool operator==(const StreamLoader& other) const { return core_ == other.core_; }

 private:
  StreamPtr<AnySample> stream_;
  Collate collate_;
  std::shared_ptr<StreamCore> core_;
};

template <typename StreamPointer>
StreamLoader(StreamPointer) -> StreamLoader<typename StreamPointer::element_type::SampleType>;
template <typename StreamPointer>
StreamLoader(StreamPointer, const StreamOptions&) -> StreamLoader<typename StreamPointer::element_type::SampleType>;
template <typename StreamPointer, typename Collate>
StreamLoader(StreamPointer, const StreamOptions&, Collate)
    -> StreamLoader<typename StreamPointer::element_type::SampleType, Collate>;

/// One pass; ends compare equal to std::default_sentinel. Copies share the pass.
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

  /// Where this pass stands.
  [[nodiscard]] const state::BatchInfo& info() const { return state_->given.info; }
  /// What ++ will bring, collated now; null at the end, and where it cannot be had: ++ then says why.
  [[nodiscard]] BatchType* read_ahead() const { return state_->read_ahead(); }

 private:
  friend class StreamLoader;
  /// Where a pass stands with one of its batches.
  struct Given {
    std::exception_ptr failure{};  // it did not come
    state::BatchInfo info{};
    int64_t handed_out = 0;
    bool complete = false;
  };
  struct State {
    StreamLoader loader;
    StreamCore::Beginning beginning;
    StreamPass<AnySample> pass;
    std::optional<Given> ahead;  // was collated before it was asked for
    std::optional<BatchType> next;
    Given given;
    std::optional<BatchType> batch;

    explicit State(const StreamLoader& from)
        : loader(from), beginning(loader.core_->begin_pass()), pass(*loader.stream_, beginning) {
      advance();
    }
    void advance() {
      batch.reset();
      if (!ahead) collate_next();
      given = *std::exchange(ahead, std::nullopt);
      if (given.failure) std::rethrow_exception(given.failure);
      if (!next) {
        loader.core_->end_pass(beginning);
        return;
      }
      batch.emplace(std::move(*next));
      next.reset();
      loader.core_->tell(beginning.number, given.handed_out, given.complete);
    }
    BatchType* read_ahead() {
      if (!ahead && !given.info.last) collate_next();
      return next ? &*next : nullptr;
    }
    void collate_next() {
      Given coming;
      try {
        if (const auto samples = pass.next()) next.emplace(loader.collate_(*samples));
      } catch (...) {
        coming.failure = std::current_exception();
      }
      coming.info = pass.info();
      coming.handed_out = pass.handed_out();
      coming.complete = pass.complete();
      ahead = coming;
    }
  };
  explicit Iterator(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace accelerate::data

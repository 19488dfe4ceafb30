// SPDX-License-Identifier: Apache-2.0
// One pass over a loader. It returns the batches of this rank and marks the last one.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "accelerate/data/batch_sharding.hpp"
#include "accelerate/data/loader_concepts.hpp"
#include "accelerate/data/split.hpp"
#include "accelerate/env/memory_format.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/loader_rng.hpp"
#include "accelerate/prepared/sampler_fingerprint.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::prepared {

struct LoaderOptions {
  bool even_batches = true;
  bool split_batches = false;
  bool device_placement = true;
  /// Rank 0 reads for all ranks. If unset, this is true for streams with device_placement.
  std::optional<bool> dispatch_batches{};
  /// Number of batches of this rank that a pass reads and drops, for loaders that cannot skip them.
  int64_t skipped = 0;
  /// Memory format of the batches.
  env::MemoryFormat memory_format = env::MemoryFormat::contiguous;
};

template <typename Loader>
using position_t = decltype(std::declval<Loader&>().begin());
template <typename Loader>
using batch_t = std::remove_cvref_t<decltype(*std::declval<position_t<Loader>&>())>;

/// A loader that presumably draws its order from LibTorch's CPU generator: it does not return its position, and it does
/// not read a shard in a seeded order.
template <typename Loader>
concept DrawsOrder = !data::Resumable<Loader> && !(data::Shardable<Loader> && data::Seedable<Loader>);

/// Iterates over a loader with the same random numbers on all ranks: at the start of the pass, and during the whole
/// pass if every rank reads the whole loader. With a single rank, or if a shard's order is seeded, the random numbers
/// are not synchronised.
template <typename Loader>
class SameSeedIterator {
 public:
  /// \param resumed  Start of the pass to be repeated. If unset, a new pass begins.
  SameSeedIterator(Loader& loader, const comm::Group& group, const std::optional<PassStart>& resumed)
      : random_(make_random(group, resumed)),
        catch_up_(random_ ? std::nullopt : resumed),
        start_(resumed ? *resumed : PassStart{CpuStream::current(), 0}),
        loader_(loader),
        position_(begin_with_same_seed()) {}

  /// Returns the next batch, or nothing at the end. The loader does not read a batch before it is requested.
  std::optional<batch_t<Loader>> next() {
    if constexpr (!data::Shardable<Loader>) {
      if (random_) return random_->walk([this] { return read(); });
    }
    return catch_up_.run([this] { return read(); });
  }
  /// Must be called after the batches to be skipped were read.
  void skipped() { catch_up_.finish(); }
  [[nodiscard]] const position_t<Loader>& position() const { return position_; }
  [[nodiscard]] const PassStart& start() const { return random_ ? random_->start() : start_; }

 private:
  static std::optional<LoaderRandom> make_random(const comm::Group& group, const std::optional<PassStart>& resumed) {
    if (group.size() == 1 || (data::Shardable<Loader> && data::Seedable<Loader>)) return std::nullopt;
    return LoaderRandom(group, resumed);
  }
  position_t<Loader> begin_with_same_seed() {
    const auto begin = [this] { return loader_.begin(); };
    return random_ ? random_->begin(begin) : catch_up_.run(begin);
  }
  std::optional<batch_t<Loader>> read() {
    if (begun_) ++position_;
    begun_ = true;
    if (position_ == loader_.end()) return std::nullopt;
    return *position_;
  }

  std::optional<LoaderRandom> random_;
  CatchUp catch_up_;  // used only without random_
  PassStart start_;   // used only without random_
  Loader& loader_;
  position_t<Loader> position_;
  bool begun_ = false;
};

/// Pass over a loader that reads only this rank's shard and has an iterator with a position.
template <typename Loader>
class ShardedPass {
 public:
  ShardedPass(Loader& loader, const LoaderOptions& options, const AcceleratorState& shared,
              const std::optional<PassStart>& resumed)
      : walk_(loader, shared.mesh.world, resumed) {
    if constexpr (data::HasSamplerFingerprint<position_t<Loader>>) {
      if (shared.debug) check_same_sampler_order(walk_.position().sampler_fingerprint(), shared.mesh.world);
    }
    for (int64_t i = 0; i < options.skipped && next(); ++i) continue;
    walk_.skipped();
  }

  [[nodiscard]] std::optional<batch_t<Loader>> next() { return walk_.next(); }
  /// Returns the batch that next() will return if it is available now, otherwise null. next() throws the error, if any.
  [[nodiscard]] batch_t<Loader>* peek() {
    if constexpr (data::ReadsAhead<position_t<Loader>>) {
      return walk_.position().read_ahead();
    } else {
      return nullptr;
    }
  }
  [[nodiscard]] const state::BatchInfo& info() const { return walk_.position().info(); }
  [[nodiscard]] const PassStart& start() const { return walk_.start(); }
  /// Returns the reason for a pass without batches; empty if the loader itself reports it.
  [[nodiscard]] static std::string empty_pass_reason() {
    return data::ExplainsEmptyPass<Loader> ? "" : "its loader returns no batch";
  }

 private:
  SameSeedIterator<Loader> walk_;
};

/// Returns the position of the loader; unset if the loader has none.
template <typename Loader>
[[nodiscard]] std::optional<state::LoaderState> position_of(Loader& loader) {
  if constexpr (data::Resumable<Loader>) return loader.state();
  return std::nullopt;
}

/// Pass over any other loader. It reads one round ahead: one batch per rank, of which this rank keeps its own, or one
/// batch of which each rank keeps a part. The last batch is therefore known when it is returned, and an exception of
/// the loader reaches all ranks after the same number of batches.
template <typename Loader>
class UnshardedPass {
 public:
  using Batch = batch_t<Loader>;

  UnshardedPass(Loader& loader, const LoaderOptions& options, const AcceleratorState& shared,
                const std::optional<PassStart>& resumed)
      : loader_(loader),
        walk_(loader, shared.mesh.world, resumed),
        sharder_(sharding_options(options, shared.mesh.data), shared.place),
        skipped_(options.skipped),
        ranks_(shared.mesh.data.size()) {
    if (options.split_batches && !data::Shardable<Loader> && shared.mesh.data.size() > 1) {
      splitter_.emplace(sharding_options(options, shared.mesh.data), shared.place);
    }
    ahead_ = read_round();
    ahead_at_ = read_to_;
    for (int64_t i = 0; i < options.skipped && next(); ++i) continue;
    walk_.skipped();
    info_.index = -1;
  }

  [[nodiscard]] std::optional<Batch> next() {
    if (!ahead_ && failure_) std::rethrow_exception(failure_);
    state_ = ahead_ ? ahead_at_ : std::nullopt;
    if (!ahead_) return std::nullopt;
    std::optional<Batch> following = read_round();
    ahead_at_ = read_to_;
    ++info_.index;
    info_.last = !following && !failure_;
    if (info_.last) info_.remainder = remainder();
    return std::exchange(ahead_, std::move(following));
  }
  /// Returns the batch that next() will return, or null at the end. next() may still add padding to the last batch.
  [[nodiscard]] Batch* peek() { return ahead_ ? &*ahead_ : nullptr; }
  [[nodiscard]] const state::BatchInfo& info() const { return info_; }
  [[nodiscard]] const PassStart& start() const { return walk_.start(); }
  /// Returns the state of the loader in which only returned batches count as consumed. If unset, the loader's own state
  /// applies.
  [[nodiscard]] const std::optional<state::LoaderState>& state() const { return state_; }
  /// Returns the number of batches of the loader and the number of parts that this rank got. Unset if batches are not
  /// split or not all were read.
  [[nodiscard]] std::optional<std::pair<int64_t, int64_t>> split() const {
    return splitter_ && ended_ && !failure_ ? std::optional(std::pair(read_, parts_)) : std::nullopt;
  }
  /// Returns the reason for a pass without batches.
  [[nodiscard]] std::string empty_pass_reason() const {
    if (read_ == 0) return "its loader returns none";
    if (skipped_ > 0) return fmt::format("{} batches are skipped, and its loader returns {}", skipped_, read_);
    return fmt::format("its loader returns {} for {} ranks, and even_batches is off", read_, ranks_);
  }

 private:
  /// A shardable loader returns this rank's shard already, so its batches are not distributed again.
  static data::BatchShardOptions sharding_options(const LoaderOptions& options, const comm::Group& group) {
    if constexpr (data::Shardable<Loader>) return {};
    return {.rank = group.rank(), .world_size = group.size(), .even_batches = options.even_batches};
  }

  /// Returns this rank's batch of the next round.
  std::optional<Batch> read_round() {
    if (ended_) return std::nullopt;
    std::optional<Batch> mine;
    try {
      do {
        auto batch = walk_.next();
        ended_ = !batch;
        if (ended_) break;
        ++read_;
        read_to_ = position_of(loader_);
        if (auto ready = feed(std::move(*batch))) mine = std::move(ready);
      } while (splitter_ ? !mine : !sharder_.round_complete());
    } catch (...) {
      failure_ = std::current_exception();
      ended_ = true;
      return std::nullopt;
    }
    if (!ended_ || splitter_) return mine;
    if (!sharder_.round_complete()) return sharder_.finish(std::move(mine));
    ahead_ = sharder_.finish(std::move(ahead_));  // the previous round was the last one
    return std::nullopt;
  }

  std::optional<Batch> feed(Batch batch) {
    auto mine = splitter_ ? splitter_->feed(std::move(batch)) : sharder_.feed(std::move(batch));
    if (mine) ++parts_;
    return mine;
  }

  [[nodiscard]] int64_t remainder() const {
    if (splitter_) return splitter_->remainder();
    return data::Shardable<Loader> ? state::BatchInfo{}.remainder : sharder_.remainder();
  }

  Loader& loader_;
  SameSeedIterator<Loader> walk_;
  data::BatchSharder<Batch> sharder_;
  std::optional<data::BatchSplitter<Batch>> splitter_;  // replaces sharder_ if batches are split
  state::BatchInfo info_{};
  std::exception_ptr failure_;
  int64_t skipped_, ranks_;
  int64_t read_ = 0, parts_ = 0;
  bool ended_ = false;
  std::optional<Batch> ahead_;
  std::optional<state::LoaderState> read_to_, ahead_at_, state_;  // after the last read, ahead_, the returned batch
};

template <typename Loader>
struct PassOf {
  using type = UnshardedPass<Loader>;
};
template <data::Shardable Loader>
requires data::HasBatchInfo<position_t<Loader>>
struct PassOf<Loader> {
  using type = ShardedPass<Loader>;
};

}  // namespace accelerate::prepared

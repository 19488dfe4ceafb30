// SPDX-License-Identifier: Apache-2.0
// One pass over a loader: this rank's batches, the last one known when it is handed out.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "accelerate/data/deal.hpp"
#include "accelerate/data/shardable.hpp"
#include "accelerate/data/split.hpp"
#include "accelerate/prepared/loader_random.hpp"
#include "accelerate/prepared/one_order.hpp"
#include "accelerate/prepared/shared.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::prepared {

struct LoaderOptions {
  bool even_batches = true;
  bool split_batches = false;
  bool device_placement = true;
  /// Rank 0 reads for all. Unset: for streams.
  std::optional<bool> dispatch_batches{};
  /// Batches of this rank that a pass reads and leaves out: for loaders that cannot skip them.
  int64_t skipped = 0;
};

template <typename Loader>
using position_t = decltype(std::declval<Loader&>().begin());
template <typename Loader>
using batch_t = std::remove_cvref_t<decltype(*std::declval<position_t<Loader>&>())>;

/// Its passes draw their order from LibTorch's CPU generator, as far as one can know: it neither returns its position
/// nor reads a share whose order comes from a seed.
template <typename Loader>
concept DrawsOrder = !data::Resumable<Loader> && !(data::Shardable<Loader> && data::Seedable<Loader>);

/// Walks a loader so that all ranks' passes are one: what it draws at its beginning, and where it is read whole all
/// that it draws, is drawn alike. On one rank, and where a share's order comes from a seed, nothing is done.
template <typename Loader>
class AlikeWalk {
 public:
  /// \param resumed  Start of the pass to be repeated. If unset, a new pass begins.
  AlikeWalk(Loader& loader, const comm::Group& group, const std::optional<PassStart>& resumed)
      : random_(make_random(group, resumed)),
        catch_up_(random_ ? std::nullopt : resumed),
        start_(resumed ? *resumed : PassStart{CpuStream::current(), 0}),
        loader_(loader),
        position_(begin_alike()) {}

  /// The next batch; none at the end. The loader is asked for no batch before it is due.
  std::optional<batch_t<Loader>> next() {
    if constexpr (!data::Shardable<Loader>) {
      if (random_) return random_->walk([this] { return read(); });
    }
    return catch_up_.run([this] { return read(); });
  }
  /// The batches that are to be skipped have been read.
  void skipped() { catch_up_.finish(); }
  [[nodiscard]] const position_t<Loader>& position() const { return position_; }
  [[nodiscard]] const PassStart& start() const { return random_ ? random_->start() : start_; }

 private:
  static std::optional<LoaderRandom> make_random(const comm::Group& group, const std::optional<PassStart>& resumed) {
    if (group.size() == 1 || (data::Shardable<Loader> && data::Seedable<Loader>)) return std::nullopt;
    return LoaderRandom(group, resumed);
  }
  position_t<Loader> begin_alike() {
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
  CatchUp catch_up_;  // without random_
  PassStart start_;   // without random_
  Loader& loader_;
  position_t<Loader> position_;
  bool begun_ = false;
};

/// A loader that reads only this rank's share and whose iterator knows its place.
template <typename Loader>
class OwnPass {
 public:
  OwnPass(Loader& loader, const LoaderOptions& options, const Shared& shared, const std::optional<PassStart>& resumed)
      : walk_(loader, shared.group, resumed) {
    if constexpr (data::TellsOrder<position_t<Loader>>) {
      if (shared.debug) require_one_order(walk_.position().order_print(), shared.group);
    }
    for (int64_t i = 0; i < options.skipped && next(); ++i) continue;
    walk_.skipped();
  }

  [[nodiscard]] std::optional<batch_t<Loader>> next() { return walk_.next(); }
  /// What next() will give, where that can be had now; null: it cannot, and next() says why.
  [[nodiscard]] batch_t<Loader>* peek() {
    if constexpr (data::ReadsAhead<position_t<Loader>>) {
      return walk_.position().read_ahead();
    } else {
      return nullptr;
    }
  }
  [[nodiscard]] const state::BatchInfo& info() const { return walk_.position().info(); }
  [[nodiscard]] const PassStart& start() const { return walk_.start(); }
  /// Of a pass without batches; empty: the loader says it.
  [[nodiscard]] static std::string why_empty() { return data::SaysWhyEmpty<Loader> ? "" : "its loader gives it none"; }

 private:
  AlikeWalk<Loader> walk_;
};

/// Where a loader says that it stands.
template <typename Loader>
[[nodiscard]] std::optional<state::LoaderState> where_it_stands(Loader& loader) {
  if constexpr (data::Resumable<Loader>) return loader.state();
  return std::nullopt;
}

/// Any other loader is read one round ahead: a batch of each rank, of which this one keeps its own, or one batch of
/// which each rank keeps a part. So the end is known with the last batch, and what the loader throws in a round comes
/// to all ranks after the same number of batches.
template <typename Loader>
class ForeignPass {
 public:
  using Batch = batch_t<Loader>;

  ForeignPass(Loader& loader, const LoaderOptions& options, const Shared& shared,
              const std::optional<PassStart>& resumed)
      : loader_(loader),
        walk_(loader, shared.group, resumed),
        dealer_(dealing(options, shared.group), shared.place),
        skipped_(options.skipped),
        ranks_(shared.group.size()) {
    if (options.split_batches && !data::Shardable<Loader> && shared.group.size() > 1) {
      splitter_.emplace(dealing(options, shared.group), shared.place);
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
  /// What next() will give, unless that is filled up at the end; null at the end.
  [[nodiscard]] Batch* peek() { return ahead_ ? &*ahead_ : nullptr; }
  [[nodiscard]] const state::BatchInfo& info() const { return info_; }
  [[nodiscard]] const PassStart& start() const { return walk_.start(); }
  /// Of the loader, with the batches that were handed out as consumed; unset: as it says itself.
  [[nodiscard]] const std::optional<state::LoaderState>& state() const { return state_; }
  /// The loader's batches, and the parts of them that this rank got; unset: they are not split, or not all were read.
  [[nodiscard]] std::optional<std::pair<int64_t, int64_t>> split() const {
    return splitter_ && ended_ && !failure_ ? std::optional(std::pair(read_, parts_)) : std::nullopt;
  }
  /// Of a pass without batches.
  [[nodiscard]] std::string why_empty() const {
    if (read_ == 0) return "its loader gives none";
    if (skipped_ > 0) return fmt::format("{} batches are skipped, and its loader gives {}", skipped_, read_);
    return fmt::format("its loader gives {} for {} ranks, and even_batches is off", read_, ranks_);
  }

 private:
  /// A shardable loader gives its own share already: nothing is dealt.
  static data::DealOptions dealing(const LoaderOptions& options, const comm::Group& group) {
    if constexpr (data::Shardable<Loader>) return {};
    return {.rank = group.rank(), .world_size = group.size(), .even_batches = options.even_batches};
  }

  /// This rank's batch of the next round.
  std::optional<Batch> read_round() {
    if (ended_) return std::nullopt;
    std::optional<Batch> mine;
    try {
      do {
        auto batch = walk_.next();
        ended_ = !batch;
        if (ended_) break;
        ++read_;
        read_to_ = where_it_stands(loader_);
        if (auto ready = feed(std::move(*batch))) mine = std::move(ready);
      } while (splitter_ ? !mine : !dealer_.round_complete());
    } catch (...) {
      failure_ = std::current_exception();
      ended_ = true;
      return std::nullopt;
    }
    if (!ended_ || splitter_) return mine;
    if (!dealer_.round_complete()) return dealer_.finish(std::move(mine));
    ahead_ = dealer_.finish(std::move(ahead_));  // the round before was the last one
    return std::nullopt;
  }

  std::optional<Batch> feed(Batch batch) {
    auto mine = splitter_ ? splitter_->feed(std::move(batch)) : dealer_.feed(std::move(batch));
    if (mine) ++parts_;
    return mine;
  }

  [[nodiscard]] int64_t remainder() const {
    if (splitter_) return splitter_->remainder();
    return data::Shardable<Loader> ? state::BatchInfo{}.remainder : dealer_.remainder();
  }

  Loader& loader_;
  AlikeWalk<Loader> walk_;
  data::BatchDealer<Batch> dealer_;
  std::optional<data::BatchSplitter<Batch>> splitter_;  // in the dealer's stead
  state::BatchInfo info_{};
  std::exception_ptr failure_;
  int64_t skipped_, ranks_;
  int64_t read_ = 0, parts_ = 0;
  bool ended_ = false;
  std::optional<Batch> ahead_;
  std::optional<state::LoaderState> read_to_, ahead_at_, state_;  // after what was read, with ahead_, with what is out
};

template <typename Loader>
struct PassOf {
  using type = ForeignPass<Loader>;
};
template <data::Shardable Loader>
requires data::KnowsItsPlace<position_t<Loader>>
struct PassOf<Loader> {
  using type = OwnPass<Loader>;
};

}  // namespace accelerate::prepared

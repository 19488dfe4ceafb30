// SPDX-License-Identifier: Apache-2.0
// Deals whole batches to ranks, for loaders that create their batches themselves (any size, any number).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/data/shard.hpp"
#include "accelerate/tree/rows.hpp"

namespace accelerate::data {

struct BatchShardOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Drops the batches of a last round in which not every rank gets one.
  bool drop_last = false;
  /// Fills the last round so that every rank has the same number of batches: see BatchSharder.
  bool even_batches = true;
};

/// Numbers of the batches of one rank among `batches`, in order: rank, rank + P, rank + 2P, ... With even_batches the
/// last round is padded with the first round's batches in order.
///
/// \throws Error (usage) for a negative number of batches, a world_size below 1, or a rank outside the world.
[[nodiscard]] std::vector<int64_t> shard_batches(int64_t batches, const BatchShardOptions& options,
                                                 const RankContext& place = {});

/// Number of batches that shard_batches returns.
[[nodiscard]] int64_t shard_batch_count(int64_t batches, const BatchShardOptions& options,
                                        const RankContext& place = {});

/// Rows of a stream's batches, counted as they arrive.
class StreamRowCount {
 public:
  explicit StreamRowCount(int64_t world_size) : world_size_(world_size) {}

  /// Adds the rows of the next batch. If unset, the batch has no rows.
  void add(std::optional<int64_t> rows);
  [[nodiscard]] int64_t batches() const { return batches_; }
  /// True if every rank has received the same number of batches.
  [[nodiscard]] bool round_complete() const { return batches_ % world_size_ == 0; }
  /// True if all batches except the last have `each()` rows, and the last has at most as many.
  [[nodiscard]] bool all_but_last_equal() const { return known_ && equal_ && 0 < last_ && last_ <= each_; }
  [[nodiscard]] bool last_is_short() const { return last_ < each_; }
  [[nodiscard]] int64_t each() const { return each_; }
  [[nodiscard]] int64_t samples() const { return samples_; }
  /// Rows in the last round so far, or -1 if a batch had none.
  [[nodiscard]] int64_t of_round() const { return known_ ? of_round_ : -1; }

 private:
  int64_t world_size_;
  int64_t batches_ = 0, samples_ = 0, of_round_ = 0;
  int64_t each_ = 0, last_ = 0;
  bool known_ = true, equal_ = true;
};

/// Rows first to first+count-1 of consecutive batches of any sizes.
template <typename Batch>
void append_rows(std::vector<tree::RowPiece<Batch>>& list, std::span<const Batch> batches, int64_t first,
                 int64_t count) {
  for (const Batch& batch : batches) {
    const int64_t rows = tree::rows(batch).value_or(0);
    const int64_t here = std::min(rows - first, count);
    if (here > 0) list.push_back({&batch, first, here});
    count -= std::max<int64_t>(here, 0);
    first = std::max<int64_t>(first - rows, 0);
  }
}

/// Appends the padding of a batch: rows of the stream's first batches, cyclic with a period of range.pool rows.
template <typename Batch>
void append_padding(std::vector<tree::RowPiece<Batch>>& list, const BatchRange& range, std::span<const Batch> front) {
  for (int64_t done = 0; done < range.padding_rows;) {
    const int64_t at = (range.padding_first + done) % range.pool;
    const int64_t count = std::min(range.padding_rows - done, range.pool - at);
    append_rows(list, front, at, count);
    done += count;
  }
}

/// Rows of a batch: this rank's own rows, then padding.
///
/// \param own  range.real rows.
template <typename Batch>
std::vector<tree::RowPiece<Batch>> row_pieces(const BatchRange& range, const tree::RowPiece<Batch>& own,
                                              std::span<const Batch> front) {
  std::vector<tree::RowPiece<Batch>> list;
  if (range.real > 0) list.push_back(own);
  append_padding(list, range, front);
  return list;
}

/// Copies the batch, because user code may modify the result.
template <typename Batch>
Batch copy_of(const Batch& batch) {
  if constexpr (tree::holds_tensors<Batch>) {
    return tree::map(batch, [](const at::Tensor& tensor) { return tensor.clone(); });
  } else {
    return batch;
  }
}

/// shard_batches for a stream of unknown length: receives batches one by one and returns those of this rank.
///
/// With even_batches the last round is padded as in Accelerate. If all batches except a shorter last one have the same
/// number of rows, it is padded row by row from the front of the stream, so that every rank's last batch is full. If
/// batches differ, or have no rows, it is padded with whole batches, those of the first round in order.
///
/// Keeps the first `rank + 1` batches for padding: references, and a copy of the one that this rank returns, because
/// user code may modify it.
template <typename Batch>
class BatchSharder {
 public:
  explicit BatchSharder(const BatchShardOptions& options, const RankContext& place = {})
      : options_(options), rows_(options.world_size) {
    (void)shard_batches(0, options, place);  // validates the options
  }

  /// Adds the stream's next batch. Returns a batch for this rank if one is ready.
  std::optional<Batch> feed(Batch batch) {
    const int64_t turn = rows_.batches() % options_.world_size;
    rows_.add(tree::rows(batch));
    if (pads_last_round() && rows_.batches() <= options_.rank + 1)
      front_.push_back(turn == options_.rank ? copy_of(batch) : batch);
    if (pads_last_round() && rows_.last_is_short()) short_ = batch;
    if (turn == options_.rank) waiting_ = std::move(batch);
    if (options_.drop_last && !rows_.round_complete()) return std::nullopt;
    return std::exchange(waiting_, std::nullopt);
  }

  /// Ends the stream.
  ///
  /// \param mine  This rank's batch of the last round, if it has one that was not returned yet.
  /// \returns its replacement: the same batch, padded if it is short, or only padding if this rank has none.
  std::optional<Batch> finish(std::optional<Batch> mine) {
    if (!pads_last_round() || rows_.batches() == 0 || (!mine && round_complete())) return mine;
    if (rows_.all_but_last_equal()) {
      const ShardPlan plan = row_plan();
      const BatchRange range = plan.batch(plan.size() - 1);
      if (range.padding_rows == 0) return mine;
      // The short batch shows which tensors have rows: in a full batch, another dimension may have the same size by
      // chance.
      const Batch& like = rows_.last_is_short() ? *short_ : front_.front();
      const tree::RowPiece<Batch> own{mine ? &*mine : nullptr, 0, range.real};
      if (auto filled = tree::join_rows(like, row_pieces<Batch>(range, own, front_))) return filled;
    }
    if (mine) return mine;
    const int64_t assigned = rows_.batches() % options_.world_size;  // batches of the incomplete round
    return front_[static_cast<size_t>((options_.rank - assigned) % std::min(rows_.batches(), options_.world_size))];
  }

  [[nodiscard]] bool round_complete() const { return rows_.round_complete(); }
  /// Remainder for state::BatchInfo, after the end.
  [[nodiscard]] int64_t remainder() const {
    if (options_.drop_last) return -1;
    if (!pads_last_round()) return 0;
    if (rows_.all_but_last_equal()) return row_plan().remainder();
    return rows_.round_complete() ? 0 : rows_.of_round();
  }
  /// Number of batches so far, on all ranks together.
  [[nodiscard]] int64_t fed() const { return rows_.batches(); }

 private:
  [[nodiscard]] bool pads_last_round() const {
    return options_.even_batches && !options_.drop_last && options_.world_size > 1;
  }

  [[nodiscard]] ShardPlan row_plan() const {
    return {rows_.samples(), {.rank = options_.rank, .world_size = options_.world_size, .batch_size = rows_.each()}};
  }

  BatchShardOptions options_;
  StreamRowCount rows_;
  std::optional<Batch> waiting_;
  std::optional<Batch> short_;
  std::vector<Batch> front_;
};

}  // namespace accelerate::data

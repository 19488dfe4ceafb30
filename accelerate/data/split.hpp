// SPDX-License-Identifier: Apache-2.0
// Cuts whole batches into one part per rank, for loaders that create their batches themselves.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/data/batch_sharding.hpp"
#include "accelerate/tree/rows.hpp"

namespace accelerate::data {

/// Number of parts of one rank. All batches except the last have the rows of the first one.
[[nodiscard]] int64_t split_count(int64_t batches, int64_t first_rows, int64_t last_rows,
                                  const BatchShardOptions& options);

/// \throws Error (usage) always: the rows of a batch cannot be distinguished from its columns.
[[noreturn]] void fail_uncut(int64_t batch, int64_t rows, int64_t ranks, const RankContext& place);

/// Rows of a stream's batches as they arrive: equal, except that the last batch may be shorter.
class SplitRows {
 public:
  /// \throws Error (usage) as shard_batches does.
  explicit SplitRows(const BatchShardOptions& options, const RankContext& place);

  /// \throws Error (usage) for a batch without rows, with more rows than the first, or after a short one.
  void add(std::optional<int64_t> rows);

  [[nodiscard]] int64_t batches() const { return batches_; }
  /// This rank's part of the latest batch, as rows of the stream. Unset if the batch is too short for this rank.
  [[nodiscard]] std::optional<BatchRange> part() const;
  /// Start of the latest batch in the stream.
  [[nodiscard]] int64_t begin() const { return (batches_ - 1) * each_; }
  /// Remainder for state::BatchInfo, after the end of the stream.
  [[nodiscard]] int64_t remainder() const;
  [[noreturn]] void fail_as_other() const;

 private:
  [[nodiscard]] ShardPlan plan() const;

  BatchShardOptions options_;
  RankContext place_;
  int64_t batches_ = 0;
  int64_t first_ = 0;  // rows of the first batch
  int64_t each_ = 0;   // rows per batch, or the full size of a single short batch
  int64_t last_ = 0;
};

/// The parts of one rank of a stream's batches. A short last batch is padded from the front of the first one, as in
/// Accelerate.
template <typename Batch>
class BatchSplitter {
 public:
  explicit BatchSplitter(const BatchShardOptions& options, const RankContext& place = {}) : rows_(options, place) {}

  /// \param batch  Next batch of the stream.
  /// \returns a copy of this rank's part, or nothing if the batch is too short for this rank.
  /// \throws Error (usage) as SplitRows does, and for a short batch with another structure than the first.
  std::optional<Batch> feed(Batch batch) {
    rows_.add(tree::rows(batch));
    if (rows_.batches() == 1) front_ = batch;
    const auto range = rows_.part();
    if (!range) return std::nullopt;
    const tree::RowPiece<Batch> own{&batch, range->first - rows_.begin(), range->real};
    auto part = tree::join_rows(batch, row_pieces<Batch>(*range, own, {&*front_, 1}));
    if (!part) rows_.fail_as_other();
    return part;
  }

  [[nodiscard]] int64_t remainder() const { return rows_.remainder(); }

 private:
  SplitRows rows_;
  std::optional<Batch> front_;
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/split.hpp"

namespace accelerate::data {
namespace {

/// Full size of a short batch of that many rows: the parts of all ranks are equal.
int64_t whole_batch(int64_t rows, int64_t ranks) { return (rows + ranks - 1) / ranks * ranks; }

/// \param rows  Rows of all batches.
ShardPlan plan_of_parts(int64_t rows, int64_t each, const BatchShardOptions& options, const RankContext& place) {
  return {rows,
          {.rank = options.rank,
           .world_size = options.world_size,
           .batch_size = each,
           .split_batches = true,
           .drop_last = options.drop_last,
           .even_batches = options.even_batches && options.world_size > 1},
          place};
}

}  // namespace

int64_t split_count(int64_t batches, int64_t first_rows, int64_t last_rows, const BatchShardOptions& options) {
  if (batches == 0) return 0;
  const int64_t each = whole_batch(first_rows, options.world_size);
  return plan_of_parts((batches - 1) * each + last_rows, each, options, {}).size();
}

SplitRows::SplitRows(const BatchShardOptions& options, const RankContext& place) : options_(options), place_(place) {
  (void)shard_batches(0, options, place);  // validates the options
}

void SplitRows::add(std::optional<int64_t> rows) {
  const int64_t ranks = options_.world_size;
  if (!rows || *rows < 1) {
    base::fail(ErrorKind::usage, place_, "loader",
               "split_batches: batch {} has no rows that could be split over the {} ranks", batches_, ranks);
  }
  if (batches_ == 1 && first_ % ranks != 0) {
    base::fail(ErrorKind::usage, place_, "loader",
               "split_batches: the first batch has {} rows, must be a round multiple of the {} ranks", first_, ranks);
  }
  if (batches_ > 0 && (last_ != first_ || *rows > first_)) {
    base::fail(ErrorKind::usage, place_, "loader",
               "split_batches: batch {} has {} rows, the first has {}; all but the last one must be equal",
               last_ != first_ ? batches_ - 1 : batches_, last_ != first_ ? last_ : *rows, first_);
  }
  if (batches_ == 0) {
    first_ = *rows;
    each_ = whole_batch(first_, ranks);
  }
  last_ = *rows;
  ++batches_;
}

ShardPlan SplitRows::plan() const { return plan_of_parts(begin() + last_, each_, options_, place_); }

std::optional<BatchRange> SplitRows::part() const {
  const ShardPlan all = plan();
  if (all.size() < batches_) return std::nullopt;
  return all.batch(batches_ - 1);
}

int64_t SplitRows::remainder() const {
  if (options_.drop_last) return -1;
  return batches_ == 0 || options_.world_size == 1 ? 0 : plan().remainder();
}

void fail_uncut(int64_t batch, int64_t rows, int64_t ranks, const RankContext& place) {
  base::fail(ErrorKind::usage, place, "loader",
             "split_batches: batch {} of {} rows cannot be cut for the {} ranks: a list in it can be read as one item "
             "per row and as columns, or a struct has members that tree_members() does not name; use another batch "
             "size, name all members, or turn split_batches off",
             batch, rows, ranks);
}

void SplitRows::fail_as_other() const {
  if (batches_ == 1) fail_uncut(0, last_, options_.world_size, place_);
  base::fail(
      ErrorKind::usage, place_, "loader",
      "split_batches: batch {} has another structure than the first, from which it is padded (other keys, lengths, "
      "dtypes or shapes)",
      batches_ - 1);
}

}  // namespace accelerate::data

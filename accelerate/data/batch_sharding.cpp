// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/batch_sharding.hpp"

namespace accelerate::data {
namespace {

// Whole batches are treated as samples.
ShardPlan plan_of(int64_t batches, const BatchShardOptions& options, const RankContext& place) {
  return {batches,
          {.rank = options.rank,
           .world_size = options.world_size,
           .batch_size = 1,
           .drop_last = options.drop_last,
           .even_batches = options.even_batches},
          place};
}

}  // namespace

std::vector<int64_t> shard_batches(int64_t batches, const BatchShardOptions& options, const RankContext& place) {
  const ShardPlan plan = plan_of(batches, options, place);
  std::vector<int64_t> numbers(static_cast<size_t>(plan.size()));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const BatchRange range = plan.batch(static_cast<int64_t>(i));
    numbers[i] = range.real == 1 ? range.first : range.padding_first;
  }
  return numbers;
}

int64_t shard_batch_count(int64_t batches, const BatchShardOptions& options, const RankContext& place) {
  return plan_of(batches, options, place).size();
}

void StreamRowCount::add(std::optional<int64_t> rows) {
  if (round_complete()) of_round_ = 0;
  if (batches_ == 0) each_ = rows.value_or(0);
  if (batches_ > 1 && last_ != each_) equal_ = false;  // a later batch follows the different one
  known_ = known_ && rows.has_value();
  last_ = rows.value_or(0);
  samples_ += last_;
  of_round_ += last_;
  ++batches_;
}

}  // namespace accelerate::data

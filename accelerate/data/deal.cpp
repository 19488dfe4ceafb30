// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/deal.hpp"

#include "accelerate/data/shard.hpp"

namespace accelerate::data {

std::vector<int64_t> deal_batches(int64_t batches, const DealOptions& options, const Place& place) {
  // Whole batches are samples that come one at a time.
  const ShardPlan plan(batches,
                       {.rank = options.rank,
                        .world_size = options.world_size,
                        .batch_size = 1,
                        .drop_last = options.drop_last,
                        .even_batches = options.even_batches},
                       place);
  std::vector<int64_t> numbers(static_cast<size_t>(plan.size()));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const BatchRange range = plan.batch(static_cast<int64_t>(i));
    numbers[i] = range.real == 1 ? range.first : range.fill_first;
  }
  return numbers;
}

}  // namespace accelerate::data

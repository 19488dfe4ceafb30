// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/shard.hpp"

#include <algorithm>
#include <limits>

namespace accelerate::data {
namespace {

/// batch_size of the result: of one rank.
ShardOptions checked(int64_t samples, ShardOptions options, const Place& place) {
  using base::fail;
  if (samples < 0) fail(ErrorKind::usage, place, "shard", "{} samples, must be at least 0", samples);
  if (options.batch_size < 1)
    fail(ErrorKind::usage, place, "shard", "batch_size is {}, must be at least 1", options.batch_size);
  if (options.world_size < 1)
    fail(ErrorKind::usage, place, "shard", "world_size is {}, must be at least 1", options.world_size);
  if (options.split_batches && options.batch_size % options.world_size != 0)
    fail(ErrorKind::usage, place, "shard",
         "split_batches: batch_size is {}, must be a round multiple of the {} ranks; {} would be one",
         options.batch_size, options.world_size, (options.batch_size / options.world_size + 1) * options.world_size);
  if (options.split_batches) options.batch_size /= options.world_size;
  if (options.batch_size > std::numeric_limits<int64_t>::max() / options.world_size)
    fail(ErrorKind::usage, place, "shard", "batch_size {} times world_size {} is more than an int64 holds, {}",
         options.batch_size, options.world_size, std::numeric_limits<int64_t>::max());
  if (options.rank < 0 || options.rank >= options.world_size)
    fail(ErrorKind::usage, place, "shard", "rank is {}, must be 0 to {} with world_size {}", options.rank,
         options.world_size - 1, options.world_size);
  return options;
}

}  // namespace

ShardPlan::ShardPlan(int64_t samples, const ShardOptions& asked, const Place& place)
    : options_(checked(samples, asked, place)),
      round_(options_.world_size * options_.batch_size),
      full_rounds_(samples / round_),
      tail_(samples % round_),
      size_(full_rounds_) {
  if (tail_ == 0 || options_.drop_last) return;
  const bool has_real = options_.rank * options_.batch_size < tail_;
  if (options_.even_batches || has_real) ++size_;
}

BatchRange ShardPlan::batch(int64_t number) const {
  const int64_t begin = options_.rank * options_.batch_size;  // within the round
  if (number < full_rounds_) return {.first = number * round_ + begin, .real = options_.batch_size};
  const int64_t real = std::clamp<int64_t>(tail_ - begin, 0, options_.batch_size);
  BatchRange range{.first = number * round_ + begin, .real = real};
  if (options_.even_batches && real < options_.batch_size) {
    range.pool = full_rounds_ > 0 ? round_ : tail_;
    range.fill_first = (begin + real - tail_) % range.pool;
    range.filling = options_.batch_size - real;
  }
  return range;
}

int64_t ShardPlan::remainder() const {
  if (options_.drop_last) return -1;
  return options_.even_batches ? tail_ : 0;
}

std::vector<std::vector<int64_t>> shard(std::span<const int64_t> samples, const ShardOptions& options,
                                        const Place& place) {
  const ShardPlan plan(static_cast<int64_t>(samples.size()), options, place);
  std::vector<std::vector<int64_t>> batches(static_cast<size_t>(plan.size()));
  for (size_t number = 0; number < batches.size(); ++number) {
    const BatchRange range = plan.batch(static_cast<int64_t>(number));
    auto& batch = batches[number];
    const auto real =
        samples.subspan(static_cast<size_t>(range.real > 0 ? range.first : 0), static_cast<size_t>(range.real));
    batch.assign(real.begin(), real.end());
    for (int64_t i = 0; i < range.filling; ++i)
      batch.push_back(samples[static_cast<size_t>((range.fill_first + i) % range.pool)]);
  }
  return batches;
}

}  // namespace accelerate::data

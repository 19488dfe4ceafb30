// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/shard.hpp"

#include <algorithm>
#include <limits>

namespace accelerate::data {
namespace {

/// Validates the options. The batch_size of the result is per rank.
ShardOptions checked(int64_t samples, ShardOptions options, const RankContext& place) {
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

int64_t positions_of(int64_t samples, const ShardOptions& options) {
  const int64_t uneven = samples % options.world_size;
  if (!options.strided || uneven == 0) return samples;
  if (options.drop_uneven) return samples - uneven;
  return options.even_batches ? samples - uneven + options.world_size : samples;
}

}  // namespace

ShardPlan::ShardPlan(int64_t samples, const ShardOptions& requested, const RankContext& place)
    : options_(checked(samples, requested, place)),
      samples_(samples),
      positions_(positions_of(samples, options_)),
      round_(options_.world_size * options_.batch_size),
      full_rounds_(positions_ / round_),
      tail_(positions_ % round_),
      size_(full_rounds_) {
  if (tail_ == 0 || options_.drop_last) return;
  const int64_t first = options_.strided ? options_.rank : options_.rank * options_.batch_size;
  if (first < tail_ || (options_.even_batches && !options_.strided)) ++size_;
}

BatchRange ShardPlan::strided_batch(int64_t number) const {
  const int64_t ranks = options_.world_size;
  const int64_t first = number * round_ + options_.rank;
  const auto until = [=](int64_t end) { return std::max<int64_t>((end - first + ranks - 1) / ranks, 0); };
  const int64_t count = until(std::min((number + 1) * round_, positions_));
  const int64_t real = std::min(count, until(samples_));
  BatchRange range{.first = first, .real = real, .padding_rows = count - real, .pool = samples_, .stride = ranks};
  if (range.padding_rows > 0) range.padding_first = (first + real * ranks) % samples_;
  return range;
}

BatchRange ShardPlan::batch(int64_t number) const {
  if (options_.strided) return strided_batch(number);
  const int64_t begin = options_.rank * options_.batch_size;  // offset within the round
  if (number < full_rounds_) return {.first = number * round_ + begin, .real = options_.batch_size};
  const int64_t real = std::clamp<int64_t>(tail_ - begin, 0, options_.batch_size);
  BatchRange range{.first = number * round_ + begin, .real = real};
  if (options_.even_batches && real < options_.batch_size) {
    range.pool = full_rounds_ > 0 ? round_ : tail_;
    range.padding_first = (begin + real - tail_) % range.pool;
    range.padding_rows = options_.batch_size - real;
  }
  return range;
}

int64_t ShardPlan::remainder() const {
  const bool last_is_handed_out = !options_.drop_last || tail_ == 0;
  if (positions_ > samples_ && last_is_handed_out) return samples_ - (positions_ - 1) / round_ * round_;
  if (options_.drop_last) return -1;
  if (options_.strided) return 0;
  return options_.even_batches ? tail_ : 0;
}

std::vector<std::vector<int64_t>> shard(std::span<const int64_t> samples, const ShardOptions& options,
                                        const RankContext& place) {
  const ShardPlan plan(static_cast<int64_t>(samples.size()), options, place);
  std::vector<std::vector<int64_t>> batches(static_cast<size_t>(plan.size()));
  for (size_t number = 0; number < batches.size(); ++number) {
    const BatchRange range = plan.batch(static_cast<int64_t>(number));
    auto& batch = batches[number];
    for (int64_t i = 0; i < range.real; ++i)
      batch.push_back(samples[static_cast<size_t>(range.first + i * range.stride)]);
    for (int64_t i = 0; i < range.padding_rows; ++i)
      batch.push_back(samples[static_cast<size_t>((range.padding_first + i) % range.pool)]);
  }
  return batches;
}

}  // namespace accelerate::data

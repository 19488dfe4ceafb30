// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/epoch_batches.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>

#include "accelerate/data/batch_sharding.hpp"

namespace accelerate::data {
namespace {

at::Tensor joined(const IndexBatches& batches) {
  size_t samples = 0;
  for (const auto& batch : batches) samples += batch.size();
  auto order = at::empty({static_cast<int64_t>(samples)}, at::TensorOptions().dtype(at::kLong));
  auto* to = order.mutable_data_ptr<int64_t>();
  for (const auto& batch : batches) to = std::copy(batch.begin(), batch.end(), to);
  return order;
}

/// True if all batches except the last have one size, and the last has at most this size.
bool all_but_last_equal(const IndexBatches& batches) {
  if (batches.empty()) return true;
  const size_t each = batches.front().size();
  return each > 0 && batches.back().size() <= each && !batches.back().empty() &&
         std::all_of(batches.begin(), batches.end() - 1, [&](const auto& batch) { return batch.size() == each; });
}

/// Divides the samples into batches of size `each`.
IndexBatches reshard(const IndexBatches& batches, size_t each) {
  IndexBatches cut;
  for (const auto& batch : batches) {
    for (const int64_t sample : batch) {
      if (cut.empty() || cut.back().size() == each) cut.emplace_back();
      cut.back().push_back(sample);
    }
  }
  return cut;
}

/// Returns the batches after the first `origin` samples, which may end within a batch. Equal batches keep their size.
IndexBatches after(const IndexBatches& batches, int64_t origin) {
  IndexBatches left;
  int64_t before = 0;
  for (const auto& batch : batches) {
    const auto size = static_cast<int64_t>(batch.size());
    const int64_t seen = std::clamp<int64_t>(origin - before, 0, size);
    if (before >= origin || seen < size) left.emplace_back(batch.begin() + seen, batch.end());
    before += size;
  }
  return origin > 0 && all_but_last_equal(batches) && !batches.empty() ? reshard(left, batches.front().size()) : left;
}

/// With a single rank the last batch is never padded, but a short one still has a remainder.
ShardOptions pads_only_across_ranks(ShardOptions options) {
  options.even_batches = options.even_batches && options.world_size > 1;
  return options;
}

ShardOptions sizes_from_batches(const IndexBatches& batches, ShardOptions options) {
  const int64_t ranks = options.world_size;
  options.batch_size = batches.empty() ? ranks : static_cast<int64_t>(batches.front().size());
  options.drop_last = false;
  // A single batch may be short, with any size.
  if (options.split_batches && batches.size() == 1)
    options.batch_size = (options.batch_size + ranks - 1) / ranks * ranks;
  if (!all_but_last_equal(batches)) {
    options.batch_size = 1;
    options.split_batches = false;
  }
  return options;
}

int64_t repeated_of(const ShardPlan& plan, int64_t samples, int64_t round) {
  if (plan.remainder() < 0) return 0;                                                        // with drop_last
  if (plan.positions() != samples) return std::max<int64_t>(plan.positions() - samples, 0);  // with strided
  return plan.remainder() > 0 ? round - plan.remainder() : 0;
}

int64_t remainder_of(const ShardPlan& plan, int64_t samples, const ShardOptions& options) {
  if (options.world_size == 1 && !options.drop_last) return samples % options.batch_size;
  return plan.remainder();
}

/// FNV-1a over whole numbers.
uint64_t hashed(uint64_t hash, const int64_t* numbers, size_t count) {
  for (size_t i = 0; i < count; ++i) hash = (hash ^ static_cast<uint64_t>(numbers[i])) * 0x100000001b3U;
  return hash;
}

}  // namespace

EpochBatches::EpochBatches(const at::Tensor& order, const ShardOptions& options, int64_t origin,
                           const RankContext& place)
    : origin_(origin),
      order_(order.slice(0, origin)),
      plan_(order_.size(0), pads_only_across_ranks(options), place),
      round_(plan_.batch_size() * options.world_size),
      drop_last_(options.drop_last),
      remainder_(remainder_of(plan_, order_.size(0), options)),
      repeated_(repeated_of(plan_, order_.size(0), round_)),
      batch_size_(plan_.batch_size()) {}

EpochBatches::EpochBatches(const IndexBatches& batches, const ShardOptions& options, int64_t origin,
                           const RankContext& place)
    : EpochBatches(Rest{after(batches, origin), origin}, options, place) {}

EpochBatches::EpochBatches(const Rest& rest, const ShardOptions& options, const RankContext& place)
    : EpochBatches(joined(rest.batches), sizes_from_batches(rest.batches, options), 0, place) {
  origin_ = rest.origin;
  if (!all_but_last_equal(rest.batches)) plan_rounds(rest.batches, options, place);
}

int64_t EpochBatches::consumed(int64_t batches) const {
  if (batches == 0) return origin_;
  if (dealt_) return origin_ + rounds_[std::min(static_cast<size_t>(batches), rounds_.size()) - 1];
  const int64_t here = batches * round_;
  const int64_t all = plan_.positions();
  return here >= all || (drop_last_ && here + round_ > all) ? samples() : origin_ + here;
}

int64_t EpochBatches::batches_for(int64_t consumed) const {
  const int64_t here = consumed - origin_;
  if (!dealt_) return here / round_;
  return std::upper_bound(rounds_.begin(), rounds_.end(), here) - rounds_.begin();
}

void EpochBatches::plan_rounds(const IndexBatches& batches, const ShardOptions& options, const RankContext& place) {
  batch_size_ = static_cast<int64_t>(batches.front().size());
  if (options.split_batches) {
    const auto other = std::find_if(batches.begin(), batches.end(),
                                    [&](const auto& batch) { return batch.size() != batches.front().size(); });
    base::fail(
        ErrorKind::usage, place, "loader",
        "split_batches: the batch sampler's batch {} has {} samples, the first has {}; all but a shorter last one "
        "must be equal",
        other - batches.begin(), other == batches.end() ? 0 : other->size(), batches.front().size());
  }
  std::vector<Slice> all;
  int64_t first = 0;
  for (const auto& batch : batches) {
    cuts_.push_back(first);
    all.push_back({first, static_cast<int64_t>(batch.size())});
    first += all.back().count;
  }
  const auto count = static_cast<int64_t>(batches.size());
  for (int64_t end = options.world_size; end < count + options.world_size; end += options.world_size) {
    const Slice& final_one = all[static_cast<size_t>(std::min(end, count)) - 1];
    rounds_.push_back(final_one.first + final_one.count);
  }
  const BatchShardOptions sharding_options{
      .rank = options.rank, .world_size = options.world_size, .even_batches = options.even_batches};
  dealt_.emplace();
  for (const int64_t number : shard_batches(count, sharding_options, place))
    dealt_->push_back(all[static_cast<size_t>(number)]);
  remainder_ = repeated_ = 0;
  const int64_t of_last_round = count % options.world_size;
  if (!options.even_batches) return;
  for (int64_t number = count - of_last_round; number < count; ++number) {
    remainder_ += all[static_cast<size_t>(number)].count;
  }
  for (int64_t rank = of_last_round; of_last_round > 0 && rank < options.world_size; ++rank) {
    const auto of_rank = shard_batches(count, {.rank = rank, .world_size = options.world_size}, place);
    repeated_ += all[static_cast<size_t>(of_rank.back())].count;
  }
}

uint64_t EpochBatches::checksum() const {
  const int64_t beginning[] = {origin_, order_.size(0), batch_size_};
  uint64_t hash = hashed(0xcbf29ce484222325U, beginning, std::size(beginning));
  hash = hashed(hash, order_.const_data_ptr<int64_t>(), static_cast<size_t>(order_.size(0)));
  return hashed(hash, cuts_.data(), cuts_.size());
}

at::Tensor EpochBatches::batch(int64_t number) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;  // numbers need no record of the view
  if (dealt_) {
    const Slice& slice = (*dealt_)[static_cast<size_t>(number)];
    return order_.narrow(0, slice.first, slice.count);
  }
  const BatchRange range = plan_.batch(number);
  if (range.padding_rows == 0 && range.stride == 1) return order_.narrow(0, range.first, range.real);
  auto filled = at::empty({range.real + range.padding_rows}, order_.options());
  const auto* from = order_.const_data_ptr<int64_t>();
  auto* to = filled.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < range.real; ++i) *to++ = from[range.first + i * range.stride];
  for (int64_t i = 0; i < range.padding_rows; ++i) *to++ = from[(range.padding_first + i) % range.pool];
  return filled;
}

}  // namespace accelerate::data

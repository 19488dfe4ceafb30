// SPDX-License-Identifier: Apache-2.0
// Shards the samples of an epoch: ranks get batches in turn, or each batch is split into one part per rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

struct ShardOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Samples per batch of one rank, or with split_batches of all ranks together.
  int64_t batch_size = 1;
  /// If true, each batch is split into world_size equal parts in rank order. If false, ranks get whole batches in turn.
  bool split_batches = false;
  /// Drops the samples that do not fill one batch on every rank.
  bool drop_last = false;
  /// If true, the last batches are padded from the front of the order, so that every rank runs the same number of equal
  /// batches. If false, the last batches may be short, and some ranks may have one batch less.
  bool even_batches = true;
  /// If true, ranks get single samples in turn instead of batches, as with torch.utils.data.DistributedSampler: rank r
  /// gets samples r, r + world_size, r + 2 world_size, ... of the order. The order is padded to a multiple of
  /// world_size only, so the last batches may be short, equally on all ranks.
  bool strided = false;
  /// With strided: drops the samples beyond a multiple of world_size instead of padding.
  bool drop_uneven = false;
};

/// One batch as positions in the order: `real` positions first, first+stride, ..., then `padding_rows` positions of
/// padding. The padding starts at padding_first and cycles through the first `pool` positions.
struct BatchRange {
  int64_t first = 0;
  int64_t real = 0;
  int64_t padding_first = 0;
  int64_t padding_rows = 0;
  int64_t pool = 0;
  int64_t stride = 1;

  bool operator==(const BatchRange&) const = default;
};

/// Computes the batches of one rank in one epoch; stores nothing per sample.
class ShardPlan {
 public:
  /// \param samples  N, length of the order.
  /// \throws Error (usage) for a batch_size or world_size below 1, a negative N, a rank outside the world, or a
  ///         batch_size that split_batches cannot split.
  ShardPlan(int64_t samples, const ShardOptions& requested, const RankContext& place = {});

  /// Samples per batch of one rank, with and without split_batches.
  [[nodiscard]] int64_t batch_size() const { return options_.batch_size; }
  /// Number of batches of this rank, including padding.
  [[nodiscard]] int64_t size() const { return size_; }
  /// \param number  0 <= number < size()
  [[nodiscard]] BatchRange batch(int64_t number) const;
  /// Number of real samples of a padded last global batch, otherwise 0; -1 with drop_last. See state::BatchInfo.
  [[nodiscard]] int64_t remainder() const;
  /// N; with strided sharding including padding to a multiple of the ranks, or without dropped samples.
  [[nodiscard]] int64_t positions() const { return positions_; }

 private:
  [[nodiscard]] BatchRange strided_batch(int64_t number) const;

  ShardOptions options_;  // batch_size is per rank
  int64_t samples_;
  int64_t positions_;
  int64_t round_;        // samples per step of all ranks
  int64_t full_rounds_;  // rounds in which the batches of all ranks are full
  int64_t tail_;         // samples after the full rounds
  int64_t size_;
};

/// Returns the samples that one rank reads in one epoch. With even_batches the tail is padded from the front of the
/// order, so that every rank runs the same number of steps. Pure function without process group and clock.
///
/// \param samples  Order over the data set, [N] sample indices.
/// \returns batches of this rank, [ceil(N / (P*B))][B] sample indices, P = world_size, B = batch_size of one rank.
/// \throws as ShardPlan does.
[[nodiscard]] std::vector<std::vector<int64_t>> shard(std::span<const int64_t> samples, const ShardOptions& options,
                                                      const RankContext& place = {});

}  // namespace accelerate::data

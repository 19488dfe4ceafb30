// SPDX-License-Identifier: Apache-2.0
// Sharding of an epoch's samples: batches are dealt round-robin, or each batch is cut into a part per rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

struct ShardOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Samples per batch of one rank; with split_batches of all ranks together.
  int64_t batch_size = 1;
  /// Each batch is cut into world_size equal parts, a rank's after another's, instead of dealt as a whole.
  bool split_batches = false;
  /// Leaves out the samples that do not fill one batch on every rank.
  bool drop_last = false;
  /// Fills the last batches from the front of the order, so that every rank runs the same number of equal batches.
  /// Off: the last batches may be short, and some ranks may have one batch less.
  bool even_batches = true;
  /// Samples are dealt one by one instead of batches, rank r gets the order's r, r + world_size, r + 2 world_size ...,
  /// as torch.utils.data.DistributedSampler deals them. The order is then filled up to a multiple of world_size and no
  /// further: the last batches are short, on every rank alike.
  bool strided = false;
  /// Of strided: the samples beyond a multiple of world_size are left out instead.
  bool drop_uneven = false;
};

/// One batch as positions in the order: first, first+stride ... `real` of them, then `filling` more that start at
/// fill_first and go round the first `pool` positions.
struct BatchRange {
  int64_t first = 0;
  int64_t real = 0;
  int64_t fill_first = 0;
  int64_t filling = 0;
  int64_t pool = 0;
  int64_t stride = 1;

  bool operator==(const BatchRange&) const = default;
};

/// The batches of one rank in one epoch as arithmetic: nothing is stored per sample.
class ShardPlan {
 public:
  /// \param samples  N, length of the order.
  /// \throws Error (usage) for a batch_size or world_size below 1, a negative N, a rank outside the world, or a
  /// batch_size
  ///         that split_batches cannot split.
  ShardPlan(int64_t samples, const ShardOptions& asked, const Place& place = {});

  /// Samples per batch of one rank, with and without split_batches.
  [[nodiscard]] int64_t batch_size() const { return options_.batch_size; }
  /// Batches of this rank, the true count.
  [[nodiscard]] int64_t size() const { return size_; }
  /// \param number  0 <= number < size()
  [[nodiscard]] BatchRange batch(int64_t number) const;
  /// Number of real samples of a padded last global batch, otherwise 0; -1 with drop_last. See state::BatchInfo.
  [[nodiscard]] int64_t remainder() const;
  /// N; with strided sharding including padding to a multiple of the ranks, or without dropped samples.
  [[nodiscard]] int64_t positions() const { return positions_; }

 private:
  [[nodiscard]] BatchRange strided_batch(int64_t number) const;

  ShardOptions options_;  // batch_size: of one rank
  int64_t samples_;
  int64_t positions_;
  int64_t round_;        // samples in one batch of every rank
  int64_t full_rounds_;  // rounds in which every rank's batch is full
  int64_t tail_;         // samples after them
  int64_t size_;
};

/// Returns the samples that one rank reads in one epoch. With even_batches the tail is padded from the front of the
/// order, so that every rank runs the same number of steps. Pure function without process group and clock.
///
/// \param samples  Order over the data set, [N] sample indices.
/// \returns batches of this rank, [ceil(N / (P*B))][B] sample indices, P = world_size, B = batch_size of one rank.
/// \throws as ShardPlan does.
[[nodiscard]] std::vector<std::vector<int64_t>> shard(std::span<const int64_t> samples, const ShardOptions& options,
                                                      const Place& place = {});

}  // namespace accelerate::data

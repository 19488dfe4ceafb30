// SPDX-License-Identifier: Apache-2.0
// The batches of one rank in one epoch, as numbers of samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/data/sampler.hpp"
#include "accelerate/data/shard.hpp"

namespace accelerate::data {

class EpochBatches {
 public:
  /// \param order   [N] int64: the epoch's samples of all ranks.
  /// \param origin  Number of first samples to omit, which were consumed under another sharding.
  EpochBatches(const at::Tensor& order, const ShardOptions& options, int64_t origin = 0, const RankContext& place = {});

  /// \param batches  Batches of all ranks. The batch_size and drop_last of the options are ignored.
  /// \param origin   Number of samples of the first batches to omit.
  /// \throws Error (usage) if split_batches requires parts of batches of different sizes.
  EpochBatches(const IndexBatches& batches, const ShardOptions& options, int64_t origin = 0,
               const RankContext& place = {});

  /// Number of batches of this rank.
  [[nodiscard]] int64_t size() const { return dealt_ ? static_cast<int64_t>(dealt_->size()) : plan_.size(); }
  /// \param number  0 <= number < size()
  /// \returns [B] int64, sample numbers.
  [[nodiscard]] at::Tensor batch(int64_t number) const;
  /// The epoch's samples of all ranks from the origin on.
  [[nodiscard]] const at::Tensor& order() const { return order_; }
  /// Checksum of the order and of the batch boundaries: equal on all ranks with equal inputs.
  [[nodiscard]] uint64_t checksum() const;
  /// Number of samples from the start of the epoch that all ranks have consumed after `batches` batches each. After the
  /// last batch, all samples of the epoch.
  [[nodiscard]] int64_t consumed(int64_t batches) const;
  /// Inverse of consumed(): the number of batches.
  [[nodiscard]] int64_t batches_for(int64_t consumed) const;
  /// Length of the epoch's order, including the samples before the origin.
  [[nodiscard]] int64_t samples() const { return origin_ + order_.size(0); }
  /// Remainder for state::BatchInfo.
  [[nodiscard]] int64_t remainder() const { return remainder_; }
  /// Number of samples that are repeated on all ranks together to pad the last batches.
  [[nodiscard]] int64_t repeated() const { return repeated_; }
  /// Samples per batch of this rank. If sizes differ, the size of the first batch.
  [[nodiscard]] int64_t batch_size() const { return batch_size_; }

 private:
  struct Rest {
    IndexBatches batches;
    int64_t origin;
  };
  EpochBatches(const Rest& rest, const ShardOptions& options, const RankContext& place);

  /// Deals whole batches, because they differ in size.
  void plan_rounds(const IndexBatches& batches, const ShardOptions& options, const RankContext& place);

  struct Slice {
    int64_t first;
    int64_t count;
  };

  int64_t origin_;
  at::Tensor order_;
  ShardPlan plan_;
  int64_t round_;  // samples that all ranks take per step, if batches have one size
  bool drop_last_;
  std::vector<int64_t> rounds_{};            // otherwise: consumed samples after each step
  std::vector<int64_t> cuts_{};              // and the start of each batch in the order
  std::optional<std::vector<Slice>> dealt_;  // if unset, the plan determines the batches
  int64_t remainder_ = 0;
  int64_t repeated_ = 0;
  int64_t batch_size_ = 1;
};

}  // namespace accelerate::data

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
  EpochBatches(const at::Tensor& order, const ShardOptions& options, int64_t origin = 0, const Place& place = {});

  /// \param batches  Of all ranks; batch_size and drop_last of the options are ignored.
  /// \param origin   Number of samples of the first batches to omit.
  /// \throws Error (usage) if split_batches requires parts of batches of different sizes.
  EpochBatches(const IndexBatches& batches, const ShardOptions& options, int64_t origin = 0, const Place& place = {});

  /// Of this rank.
  [[nodiscard]] int64_t size() const { return dealt_ ? static_cast<int64_t>(dealt_->size()) : plan_.size(); }
  /// \param number  0 <= number < size()
  /// \returns [B] int64, sample numbers.
  [[nodiscard]] at::Tensor batch(int64_t number) const;
  /// The epoch's samples, of all ranks, without those before the origin.
  [[nodiscard]] const at::Tensor& order() const { return order_; }
  /// Checksum of the order and of the batch boundaries: equal on all ranks with equal inputs.
  [[nodiscard]] uint64_t checksum() const;
  /// Number of samples from the start of the epoch that all ranks have consumed after `batches` batches each; all
  /// samples of the epoch after the last batch.
  [[nodiscard]] int64_t consumed(int64_t batches) const;
  /// The other way round: the number of batches.
  [[nodiscard]] int64_t batches_for(int64_t consumed) const;
  /// Length of the epoch's order, from its beginning.
  [[nodiscard]] int64_t samples() const { return origin_ + order_.size(0); }
  /// state::BatchInfo's.
  [[nodiscard]] int64_t remainder() const { return remainder_; }
  /// Number of samples that are repeated on all ranks together to pad the last batches.
  [[nodiscard]] int64_t repeated() const { return repeated_; }
  /// Samples per batch of this rank; of batches that differ the first one's.
  [[nodiscard]] int64_t batch_size() const { return batch_size_; }

 private:
  struct Rest {
    IndexBatches batches;
    int64_t origin;
  };
  EpochBatches(const Rest& rest, const ShardOptions& options, const Place& place);

  /// As whole batches, for they differ in size.
  void deal(const IndexBatches& batches, const ShardOptions& options, const Place& place);

  struct Slice {
    int64_t first;
    int64_t count;
  };

  int64_t origin_;
  at::Tensor order_;
  ShardPlan plan_;
  int64_t round_;  // samples that all ranks take per step, where that is one number
  bool drop_last_;
  std::vector<int64_t> rounds_{};            // where it is none: consumed after each step
  std::vector<int64_t> cuts_{};              // and where in the order each batch of all ranks begins
  std::optional<std::vector<Slice>> dealt_;  // unset: determined by the plan
  int64_t remainder_ = 0;
  int64_t repeated_ = 0;
  int64_t batch_size_ = 1;
};

}  // namespace accelerate::data

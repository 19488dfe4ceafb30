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
  /// order   [N] int64: the epoch's samples, of all ranks
  EpochBatches(at::Tensor order, const ShardOptions& options, const Place& place = {});

  /// batches   of all ranks; options' batch_size and drop_last do not count
  /// Throws Error (usage) where split_batches asks for parts of batches that differ in size.
  EpochBatches(const IndexBatches& batches, const ShardOptions& options, const Place& place = {});

  /// Of this rank.
  [[nodiscard]] int64_t size() const { return dealt_ ? static_cast<int64_t>(dealt_->size()) : plan_.size(); }
  /// number   0 <= number < size()
  /// returns   [B] int64, sample numbers
  [[nodiscard]] at::Tensor batch(int64_t number) const;
  /// The epoch's samples, of all ranks.
  [[nodiscard]] const at::Tensor& order() const { return order_; }
  /// state::BatchInfo's.
  [[nodiscard]] int64_t remainder() const { return remainder_; }
  /// Samples per batch of this rank; of batches that differ the first one's.
  [[nodiscard]] int64_t batch_size() const { return batch_size_; }

 private:
  /// As whole batches, for they differ in size.
  void deal(const IndexBatches& batches, const ShardOptions& options, const Place& place);

  struct Slice {
    int64_t first;
    int64_t count;
  };

  at::Tensor order_;
  ShardPlan plan_;
  std::optional<std::vector<Slice>> dealt_;  // none: the plan says which
  int64_t remainder_ = 0;
  int64_t batch_size_ = 1;
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// State shared by the handles of a loader: its settings and the position of its latest pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/data/active_iterator.hpp"
#include "accelerate/data/epoch_batches.hpp"
#include "accelerate/data/epoch_counter.hpp"
#include "accelerate/data/loader_base.hpp"
#include "accelerate/data/resume_point.hpp"

namespace accelerate::data {

struct LoaderBase::Core : ResumePoint {
  /// \throws Error (usage) for a batch_size below 1, and for options that exclude each other.
  Core(int64_t source_samples, const LoaderOptions& requested, bool seeded_source);

  /// \throws as ShardPlan does; the sharding is then unchanged.
  void take(const ShardSpec& requested, const RankContext& place);

  [[nodiscard]] bool shuffles() const { return seeded || !sampler || sampler->seeded(); }
  [[nodiscard]] uint64_t seed();
  /// True if the order is sharded sample by sample.
  [[nodiscard]] bool strided() const { return sampler && sampler->distributed() != nullptr; }
  [[nodiscard]] int64_t size();
  [[nodiscard]] int64_t batch_size();

  /// The epoch's batches without the first `from` samples. \throws Error (usage) for samples that do not exist.
  [[nodiscard]] EpochBatches batches(int64_t from = 0);

  struct Beginning {
    EpochBatches batches;
    int64_t first;   // number of the pass's first batch
    int64_t number;  // number of the pass, from 1
  };
  /// Begins the pass of the next epoch, or the rest of a resumed one.
  [[nodiscard]] Beginning begin_epoch();

  [[nodiscard]] state::LoaderState state();
  void load_state(const state::LoaderState& from);
  void set_position(const state::LoaderState& there);
  /// Kind of the epoch's order.
  [[nodiscard]] std::string_view kind() const { return sampler ? sampler->kind() : "a batch sampler's"; }
  void set_epoch(int64_t epoch);
  /// Core of a loader whose next pass includes the skipped and consumed batches; null if there are none.
  [[nodiscard]] std::shared_ptr<Core> with_skipped_front();

  int64_t samples;
  LoaderOptions options;
  bool seeded;         // the data of the source depends on the seed
  SamplerPtr sampler;  // null if a batch sampler creates the batches
  ShardSpec shard_spec{};
  RankContext place{};  // this rank, for errors
  bool pinned = false;  // true if batches are copied to an accelerator
  EpochCounter epochs{};

  ActiveIterator latest{};
  int64_t samples_of_pass = 0;                                                // samples of the latest pass
  std::shared_ptr<LoadingReport> report = std::make_shared<LoadingReport>();  // of the latest pass

 private:
  [[nodiscard]] ShardOptions shard_options() const { return shard_options(shard_spec); }
  [[nodiscard]] ShardOptions shard_options(const ShardSpec& spec) const;
  [[nodiscard]] at::Tensor order();
  /// Length of the sampler's order, on the rank that reads.
  [[nodiscard]] int64_t order_length() const { return samples_elsewhere_.value_or(sampler->size()); }
  /// Number of a resumed pass's first batch.
  [[nodiscard]] int64_t first_of_rest(const EpochBatches& rest);
  /// Current state without a position.
  [[nodiscard]] state::LoaderState here();
  /// Reason why a pass that begins with batch `first` has no batch.
  [[nodiscard]] std::string empty_rank_reason(const EpochBatches& made, int64_t first) const;

  std::optional<int64_t> samples_elsewhere_{};  // order length of the rank that reads for this one
};

}  // namespace accelerate::data

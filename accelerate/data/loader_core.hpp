// SPDX-License-Identifier: Apache-2.0
// State shared by the handles of a loader: its settings and the position of its latest pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/data/epoch_batches.hpp"
#include "accelerate/data/epoch_count.hpp"
#include "accelerate/data/latest_pass.hpp"
#include "accelerate/data/loader_base.hpp"
#include "accelerate/data/next_pass.hpp"

namespace accelerate::data {

struct LoaderBase::Core : NextPass {
  /// \throws Error (usage) for a batch_size below 1, and for options that exclude each other.
  Core(int64_t source_samples, const LoaderOptions& asked, bool seeded_source);

  /// \throws as ShardPlan does; the sharding is unchanged then.
  void take(const Share& asked, const Place& place);

  [[nodiscard]] bool shuffles() const { return seeded || !sampler || sampler->seeded(); }
  [[nodiscard]] uint64_t seed();
  /// The sampler has its order dealt sample by sample.
  [[nodiscard]] bool strided() const { return sampler && sampler->distributed() != nullptr; }
  [[nodiscard]] int64_t size();
  [[nodiscard]] int64_t batch_size();

  /// The epoch's batches without the first `from` samples. \throws Error (usage) for samples that do not exist.
  [[nodiscard]] EpochBatches batches(int64_t from = 0);

  struct Beginning {
    EpochBatches batches;
    int64_t first;   // number of the pass's first batch
    int64_t number;  // of the pass, from 1
  };
  /// The next epoch's pass, or the rest of a resumed one.
  [[nodiscard]] Beginning begin_epoch();

  [[nodiscard]] state::LoaderState state();
  void load_state(const state::LoaderState& from);
  void stands_at(const state::LoaderState& there);
  /// What the epoch's order is.
  [[nodiscard]] std::string_view kind() const { return sampler ? sampler->kind() : "a batch sampler's"; }
  void set_epoch(int64_t epoch);
  /// Core of a loader whose next pass includes what this one's omits; null if it omits nothing.
  [[nodiscard]] std::shared_ptr<Core> with_its_front();

  int64_t samples;
  LoaderOptions options;
  bool seeded;         // the source's data depends on the seed
  SamplerPtr sampler;  // null: a batch sampler makes the batches
  Share share{};
  Place place{};        // of that rank
  bool pinned = false;  // batches go to an accelerator
  EpochCount epochs{};

  LatestPass latest{};
  int64_t samples_of_pass = 0;                                          // of the pass that began last
  std::shared_ptr<LoadReport> report = std::make_shared<LoadReport>();  // of that one, too

 private:
  [[nodiscard]] ShardOptions shard_options() const { return shard_options(share); }
  [[nodiscard]] ShardOptions shard_options(const Share& whose) const;
  [[nodiscard]] at::Tensor order();
  /// Length of the sampler's order: the one that is read.
  [[nodiscard]] int64_t order_length() const { return samples_elsewhere_.value_or(sampler->size()); }
  /// Number of a resumed pass's first batch.
  [[nodiscard]] int64_t first_of_rest(const EpochBatches& rest);
  /// Current state without a position.
  [[nodiscard]] state::LoaderState here();
  /// Of a pass that would begin with batch `first`.
  [[nodiscard]] std::string why_no_batch(const EpochBatches& made, int64_t first) const;

  std::optional<int64_t> samples_elsewhere_{};  // of the rank that reads for this one
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// What the handles of a loader share: its settings, and where its latest pass stands.
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
  /// Throws Error (usage) for a batch_size below 1, and for options that exclude one another.
  Core(int64_t source_samples, const LoaderOptions& asked, bool seeded_source);

  /// Throws as ShardPlan does; then the share stays as it was.
  void take(const Share& asked, const Place& place);

  [[nodiscard]] bool shuffles() const { return seeded || !sampler || sampler->seeded(); }
  [[nodiscard]] uint64_t seed();
  /// The sampler has its order dealt sample by sample.
  [[nodiscard]] bool strided() const { return sampler && sampler->distributed() != nullptr; }
  [[nodiscard]] int64_t size();
  [[nodiscard]] int64_t batch_size();

  /// The epoch's batches, without the first `from` samples. Throws Error (usage) for samples that are not there.
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
  /// Another one, whose next pass is this one's with what it leaves out; null: it leaves out nothing.
  [[nodiscard]] std::shared_ptr<Core> with_its_front();

  int64_t samples;
  LoaderOptions options;
  bool seeded;         // what the source reads depends on the seed
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
  /// How things stand, without a position.
  [[nodiscard]] state::LoaderState here();
  /// Of a pass that would begin with batch `first`.
  [[nodiscard]] std::string why_no_batch(const EpochBatches& made, int64_t first) const;

  std::optional<int64_t> samples_elsewhere_{};  // of the rank that reads for this one
};

}  // namespace accelerate::data

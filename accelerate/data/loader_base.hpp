// SPDX-License-Identifier: Apache-2.0
// The part of a loader that is independent of the batch type: which samples are returned when.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/data/loader_concepts.hpp"
#include "accelerate/data/loading_report.hpp"
#include "accelerate/data/sampler.hpp"
#include "accelerate/data/source.hpp"
#include "accelerate/state/batch_info.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

struct LoaderOptions {
  /// Samples per batch of one rank, or with ShardSpec::split_batches of all ranks together.
  int64_t batch_size = 1;
  /// If true, each epoch has a new order: torch.randperm with a CPU generator of seed + epoch.
  bool shuffle = false;
  /// Drops the last samples if they do not fill a batch on every rank.
  bool drop_last = false;
  /// Seed of the orders. If unset, the seed of LibTorch's CPU generator at the first pass (set by torch::manual_seed,
  /// otherwise random); a prepared loader uses rank 0's.
  std::optional<uint64_t> seed{};
  /// Determines the samples of an epoch and their order; excludes shuffle.
  SamplerPtr sampler{};
  /// Creates the batches; excludes batch_size, shuffle, sampler and drop_last.
  BatchSampler batch_sampler{};
  /// Number of threads that read ahead in order. If 0, batches are read on demand.
  int64_t num_workers = 0;
  /// Batches per worker that are read and not yet taken.
  int64_t prefetch_factor = 2;
  /// Maximum wait for a worker's batch; after it, an error names the samples. 0 for unlimited.
  std::chrono::milliseconds timeout{0};
  /// If unset or true, prepare() copies the next batch to an accelerator through pinned memory on a side stream. If
  /// false, each batch is copied on demand on the current stream. Must match on all ranks; ignored on the CPU.
  std::optional<bool> pin_memory{};
  /// If true, report() is logged at the end of each pass (level info).
  bool log_report = false;
};

/// A handle: copies refer to the same loader. Not thread-safe.
class LoaderBase {
 public:
  static constexpr bool explains_empty_pass = true;

  /// Sets this rank's shard from the next begin() on; called by `prepare`. With a single rank the last batch is never
  /// padded.
  /// \throws Error (usage) for a rank outside the world, and a batch_size that split_batches cannot split.
  void shard(const ShardSpec& shard_spec, const RankContext& place = {});

  /// Number of batches of this rank in a whole pass, including padding. A resumed pass has only the remaining ones.
  [[nodiscard]] int64_t size() const;
  /// N, the number of samples in the source. A sampler may visit more or fewer.
  [[nodiscard]] int64_t sample_count() const;
  /// Samples per batch of this rank.
  [[nodiscard]] int64_t batch_size() const;
  /// Samples per step of all ranks together.
  [[nodiscard]] int64_t total_batch_size() const;
  [[nodiscard]] const ShardSpec& shard_spec() const;
  [[nodiscard]] const LoaderOptions& options() const;

  /// Current epoch, or between passes the next one.
  [[nodiscard]] int64_t epoch() const;
  /// Sets the epoch of the next begin(). \throws Error (usage) for a negative epoch.
  void set_epoch(int64_t epoch);

  /// Position of the latest pass. The current batch counts as consumed; a batch that could not be read does not. A pass
  /// that ended early keeps its position; after a complete pass the position is the start of the next epoch. Equal on
  /// all ranks at the same batch number. Fixes the seed.
  [[nodiscard]] state::LoaderState state() const;
  /// Resumes the next begin() at that position. With the same sharding the pass continues with the following batches.
  /// With another world size or batch size it re-shards the remaining samples of the epoch's order, each once except
  /// for padding (from the front of the remainder). Later epochs are complete.
  /// \throws Error (usage) if the state's order has another length, and for numbers that no loader saves.
  void load_state(const state::LoaderState& state);
  /// Sets the position of another rank that reads for this one.
  void set_position(const state::LoaderState& state);

  /// The seed. If it was unset, this call fixes it.
  [[nodiscard]] uint64_t seed() const;
  void set_seed(uint64_t seed);
  /// True if the order or the data depends on the seed.
  [[nodiscard]] bool shuffles() const;

  /// If on, sources may read into pinned memory from the next begin() on. `prepare` calls it for batches that are
  /// copied to an accelerator.
  void read_pinned(bool on);

  /// Waiting times of the latest pass.
  [[nodiscard]] LoadingReport report() const;

  /// True for handles of the same loader.
  bool operator==(const LoaderBase&) const = default;

 protected:
  struct Core;
  class Pass;

  /// \param seeded  True if the data depends on the seed.
  /// \throws Error (usage) for a batch_size below 1, and for options that exclude each other.
  LoaderBase(int64_t samples, const LoaderOptions& options, bool seeded);

  /// Core of a loader that skips `batches` batches in each pass. \throws Error (usage) for a negative number.
  [[nodiscard]] std::shared_ptr<Core> skipping(int64_t batches) const;
  [[nodiscard]] std::shared_ptr<Core> core_with_skipped_front() const;

  std::shared_ptr<Core> core_;
};

/// The sample numbers of one pass; reads no data. Not thread-safe.
class LoaderBase::Pass {
 public:
  /// Begins a pass of the next epoch.
  /// \param workers  Provides the number of workers.
  /// \throws Error (usage) for samples that do not exist.
  Pass(std::shared_ptr<Core> loader, const LoadingReport& workers);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  using Clock = LoadingTimer::Clock;

  /// Advances to the next batch. Returns its samples, [B] int64, or an undefined tensor at the end.
  at::Tensor advance();
  /// Marks the batch as consumed.
  ///
  /// \param since  Time at which the batch became available; unset if it was read while the loop waited.
  void arrived(std::optional<Clock::time_point> since = {});
  /// The loop waited for this time to obtain a later batch.
  void waited(Clock::duration duration);
  /// Samples of the next batch; undefined at the end.
  [[nodiscard]] at::Tensor next_indices() const;
  /// Batches of this pass.
  [[nodiscard]] int64_t size() const;
  /// The samples of batch `number` of this pass, for any thread; outlives the pass.
  [[nodiscard]] std::function<at::Tensor(int64_t)> indices() const;
  [[nodiscard]] bool ended() const;
  /// Constant during the pass.
  [[nodiscard]] const ReadContext& context() const;
  [[nodiscard]] const state::BatchInfo& info() const;
  /// Reads the whole order.
  [[nodiscard]] SamplerFingerprint sampler_fingerprint() const;

 private:
  struct Steps;
  std::unique_ptr<Steps> steps_;
};

}  // namespace accelerate::data

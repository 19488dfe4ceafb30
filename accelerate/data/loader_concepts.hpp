// SPDX-License-Identifier: Apache-2.0
// Concepts of loaders for prepare(). Every range of batches is a loader; the concepts are optional capabilities.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/state/batch_info.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

/// Sharding of a loader and treatment of its end.
struct ShardSpec {
  int64_t rank = 0;
  int64_t world_size = 1;
  /// If true, the last batches are padded, so that every rank runs the same number of equal batches.
  bool even_batches = true;
  /// If true, batch_size counts the samples of all ranks, and each rank takes its part of every batch.
  bool split_batches = false;
  /// If false, another rank reads for this one, which may have no data. load_state() then provides position and length.
  bool reads = true;
  /// If false, the caller logs the reports of its passes (LoaderOptions::log_report).
  bool reports = true;
};

/// Supports sharding: loader.shard(shard_spec), or loader.shard(shard_spec, place) with a RankContext
/// for errors.
template <typename Loader>
concept AcceptsShardSpec = requires(Loader& loader, const ShardSpec& shard_spec) {
  loader.shard(shard_spec);
};

/// Reads only its own shard: AcceptsShardSpec, or loader.shard(rank, world_size). Any other loader is read whole, and
/// its batches are assigned in turn.
template <typename Loader>
concept Shardable = AcceptsShardSpec<Loader> || requires(Loader& loader, int64_t rank, int64_t world_size) {
  loader.shard(rank, world_size);
};

/// Has a seed for its order, which is set to rank 0's: loader.seed(), loader.set_seed(uint64_t). If it has shuffles()
/// and that returns false, the seed is not set.
template <typename Loader>
concept Seedable = requires(Loader& loader, uint64_t seed) {
  { loader.seed() } -> std::convertible_to<uint64_t>;
  loader.set_seed(seed);
};

/// Its iterator knows its position: position.info() returns a reference to a BatchInfo that stays valid with the
/// iterator. For other loaders one batch is read ahead to detect the end.
template <typename Iterator>
concept HasBatchInfo = requires(const Iterator& position) {
  { position.info() } -> std::same_as<const state::BatchInfo&>;
};

/// Its iterator can read ahead: position.read_ahead() returns a pointer to the batch that ++ will return, or null if it
/// is not available immediately, and does not throw. The loader's position is unchanged until ++. prepare() uses it to
/// copy a batch to an accelerator during the previous step.
template <typename Iterator>
concept ReadsAhead = requires(const Iterator& position) {
  { position.read_ahead() } -> std::same_as<typename Iterator::value_type*>;
};

/// Fingerprint of an epoch's order: equal on two ranks that compute the same order.
struct SamplerFingerprint {
  int64_t epoch = 0;
  int64_t samples = 0;    ///< number of samples of all ranks, from the pass's origin on
  uint64_t checksum = 0;  ///< checksum of the sample numbers and batch boundaries

  bool operator==(const SamplerFingerprint&) const = default;
};

/// Its iterator provides a fingerprint of the order of all ranks: position.sampler_fingerprint() returns a
/// SamplerFingerprint.
template <typename Iterator>
concept HasSamplerFingerprint = requires(const Iterator& position) {
  { position.sampler_fingerprint() } -> std::same_as<SamplerFingerprint>;
};

/// Reads samples without numbers in sequence, so that each rank would have to read all: Loader::is_stream is true.
template <typename Loader>
concept Streaming = requires {
  requires Loader::is_stream;
};

/// Reports the reason for a pass without batches itself: Loader::explains_empty_pass is true.
template <typename Loader>
concept ExplainsEmptyPass = requires {
  requires Loader::explains_empty_pass;
};

/// Has a number of batches: of this rank if it is Shardable, otherwise of all ranks together.
template <typename Loader>
concept Counted = requires(const Loader& loader) {
  { loader.size() } -> std::integral;
};

/// The same, but the number may be unknown.
template <typename Loader>
concept MaybeCounted = requires(const Loader& loader) {
  { loader.size() } -> std::same_as<std::optional<int64_t>>;
};

/// Has the number of samples per step of all ranks together, after sharding.
template <typename Loader>
concept Batched = requires(const Loader& loader) {
  { loader.total_batch_size() } -> std::convertible_to<int64_t>;
};

/// Can skip the first batches of its passes without reading them: loader.skip_first_batches(n) returns another loader.
template <typename Loader>
concept Skippable = requires(const Loader& loader, int64_t batches) {
  { loader.skip_first_batches(batches) } -> std::same_as<Loader>;
};

/// \throws Error (usage) if the number is negative or beyond any epoch.
inline void check_skipped(int64_t batches, const RankContext& place = {}) {
  constexpr int64_t most = int64_t{1} << 40;
  if (batches < 0) {
    base::fail(ErrorKind::usage, place, "skip_first_batches", "{} batches are to be skipped, must be at least 0",
               batches);
  }
  if (batches > most) {
    base::fail(ErrorKind::usage, place, "skip_first_batches", "{} batches are to be skipped, must be at most {}",
               batches, most);
  }
}

/// Has a position that can be saved and restored.
template <typename Loader>
concept Resumable = requires(Loader& loader, const state::LoaderState& state) {
  { loader.state() } -> std::convertible_to<state::LoaderState>;
  loader.load_state(state);
};

/// \throws Error (usage) for split_batches if the loader does not support it. The loader's exceptions propagate.
template <Shardable Loader>
void assign_shard(Loader& loader, const ShardSpec& shard_spec, const RankContext& place) {
  if constexpr (requires { loader.shard(shard_spec, place); }) {
    loader.shard(shard_spec, place);
  } else if constexpr (AcceptsShardSpec<Loader>) {
    loader.shard(shard_spec);
  } else {
    if (shard_spec.split_batches && shard_spec.world_size > 1) {
      base::fail(ErrorKind::usage, place, "prepare",
                 "split_batches is on, and this loader is sharded by shard(rank, world_size), which does not state "
                 "so; give it shard(const data::ShardSpec&), or turn split_batches off");
    }
    loader.shard(shard_spec.rank, shard_spec.world_size);
  }
}

template <Seedable Loader>
[[nodiscard]] bool needs_seed(const Loader& loader) {
  if constexpr (requires {
                  { loader.shuffles() } -> std::convertible_to<bool>;
                }) {
    return loader.shuffles();
  } else {
    return true;
  }
}

}  // namespace accelerate::data

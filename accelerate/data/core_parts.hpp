// SPDX-License-Identifier: Apache-2.0
// What the cores of loaders do alike, whatever their samples are. Options are LoaderOptions or StreamOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/data/epoch_count.hpp"
#include "accelerate/data/latest_pass.hpp"
#include "accelerate/data/shard.hpp"
#include "accelerate/data/shardable.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

/// The seed in force: where it was unset, the one of LibTorch's CPU generator, from now on.
[[nodiscard]] uint64_t fixed_seed(std::optional<uint64_t>& seed);

/// Throws Error (usage) for numbers that are none.
template <typename Options>
void check_common_options(const Options& options) {
  const auto at_least = [](std::string_view what, int64_t value, std::string_view unit, int64_t least) {
    if (value < least)
      base::fail(ErrorKind::usage, {}, "loader", "{} is {}{}, must be at least {}", what, value, unit, least);
  };
  at_least("batch_size", options.batch_size, "", 1);
  at_least("num_workers", options.num_workers, "", 0);
  at_least("prefetch_factor", options.prefetch_factor, "", 1);
  at_least("timeout", options.timeout.count(), " ms", 0);
}

/// Of one rank nothing is filled up.
template <typename Options>
[[nodiscard]] ShardOptions shard_options_of(const Options& options, const Share& share) {
  return {.rank = share.rank,
          .world_size = share.world_size,
          .batch_size = options.batch_size,
          .split_batches = share.split_batches,
          .drop_last = options.drop_last,
          .even_batches = share.even_batches && share.world_size > 1};
}

/// How long a batch is waited for; unset: as long as it takes, and longer than a clock can say.
[[nodiscard]] inline std::optional<std::chrono::steady_clock::duration> longest_wait(
    std::chrono::milliseconds timeout) {
  constexpr auto most =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::duration::max());
  if (timeout.count() <= 0 || timeout > most / 2) return std::nullopt;
  return timeout;
}

/// The beginning of an epoch.
///
/// order   its kind
template <typename Options>
[[nodiscard]] state::LoaderState beginning_of(int64_t epoch, int64_t samples, std::string_view order,
                                              std::optional<uint64_t> seed, const Options& options,
                                              const Share& share) {
  return {.epoch = epoch,
          .samples = samples,
          .order = std::string(order),
          .seed = seed,
          .world_size = share.world_size,
          .batch_size = options.batch_size,
          .split_batches = share.split_batches,
          .even_batches = share.even_batches,
          .drop_last = options.drop_last};
}

/// The place of the pass that speaks, else the beginning of the next epoch.
/// here   how things stand, without a position
[[nodiscard]] state::LoaderState state_of(state::LoaderState here, const std::optional<LatestPass::Position>& position,
                                          const EpochCount& epochs);

/// An epoch is asked for: whether the next pass still goes on where a loaded state stood, which is so within its own
/// epoch. A line says what is dropped.
[[nodiscard]] bool keeps_place(const std::optional<state::LoaderState>& resumed, int64_t epoch);

/// A warning, once a line: whoever divides by the number of samples should hear of it.
void warn_of_no_batch(const Place& place, std::string_view why);
/// Why so many samples, of which there is one at least, leave this rank without a batch.
[[nodiscard]] std::string why_too_few(int64_t samples, const ShardOptions& shard);
/// "; 3 come twice, to fill the last batches", or nothing where none does.
[[nodiscard]] std::string repeated_text(int64_t samples);

/// Throws Error (usage) for numbers that no loader gives.
/// least_samples   -1 where their number may be unknown, else 0
void check_state(const state::LoaderState& state, int64_t least_samples);

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// Common code of the loaders' cores. Options are LoaderOptions or StreamOptions.
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

/// Returns the seed. If unset, it is set to the seed of LibTorch's CPU generator.
[[nodiscard]] uint64_t fixed_seed(std::optional<uint64_t>& seed);

/// \throws Error (usage) if an option is out of range.
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

/// With a single rank the last batch is never padded.
template <typename Options>
[[nodiscard]] ShardOptions shard_options_of(const Options& options, const Share& share) {
  return {.rank = share.rank,
          .world_size = share.world_size,
          .batch_size = options.batch_size,
          .split_batches = share.split_batches,
          .drop_last = options.drop_last,
          .even_batches = share.even_batches && share.world_size > 1};
}

/// Maximum wait for a batch; unset if unlimited, or if the timeout exceeds the clock's range.
[[nodiscard]] inline std::optional<std::chrono::steady_clock::duration> longest_wait(
    std::chrono::milliseconds timeout) {
  constexpr auto most =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::duration::max());
  if (timeout.count() <= 0 || timeout > most / 2) return std::nullopt;
  return timeout;
}

/// State at the start of an epoch.
///
/// \param order  Kind of order.
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

/// Position of the active pass, or the start of the next epoch.
/// \param here  State without a position.
[[nodiscard]] state::LoaderState state_of(state::LoaderState here, const std::optional<LatestPass::Position>& position,
                                          const EpochCount& epochs);

/// True if the next pass still resumes the loaded state after set_epoch(): the epoch is the state's own. Otherwise the
/// dropped position is logged.
[[nodiscard]] bool keeps_place(const std::optional<state::LoaderState>& resumed, int64_t epoch);

/// Warns once, because code that divides by the number of samples would fail.
void warn_of_no_batch(const Place& place, std::string_view why);
/// Reason why this rank has no batch although the epoch has at least one sample.
[[nodiscard]] std::string why_too_few(int64_t samples, const ShardOptions& shard);
/// Returns "; 3 are repeated to pad the last batches", or "" if no sample repeats.
[[nodiscard]] std::string repeated_text(int64_t samples);

/// \param least_samples  -1 if the number of samples may be unknown, otherwise 0.
/// \throws Error (usage) for numbers that no loader saves.
void check_state(const state::LoaderState& state, int64_t least_samples);

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// Common code of the loaders' cores. Options are LoaderOptions or StreamOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/data/active_iterator.hpp"
#include "accelerate/data/epoch_counter.hpp"
#include "accelerate/data/loader_concepts.hpp"
#include "accelerate/data/shard.hpp"
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
[[nodiscard]] ShardOptions shard_options_of(const Options& options, const ShardSpec& shard_spec) {
  return {.rank = shard_spec.rank,
          .world_size = shard_spec.world_size,
          .batch_size = options.batch_size,
          .split_batches = shard_spec.split_batches,
          .drop_last = options.drop_last,
          .even_batches = shard_spec.even_batches && shard_spec.world_size > 1};
}

/// Maximum wait for a batch; unset if unlimited, or if the timeout exceeds the clock's range.
[[nodiscard]] inline std::optional<std::chrono::steady_clock::duration> max_wait(std::chrono::milliseconds timeout) {
  constexpr auto most =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::duration::max());
  if (timeout.count() <= 0 || timeout > most / 2) return std::nullopt;
  return timeout;
}

/// State at the start of an epoch.
///
/// \param order  Kind of order.
template <typename Options>
[[nodiscard]] state::LoaderState epoch_start(int64_t epoch, int64_t samples, std::string_view order,
                                             std::optional<uint64_t> seed, const Options& options,
                                             const ShardSpec& shard_spec) {
  return {.epoch = epoch,
          .samples = samples,
          .order = std::string(order),
          .seed = seed,
          .world_size = shard_spec.world_size,
          .batch_size = options.batch_size,
          .split_batches = shard_spec.split_batches,
          .even_batches = shard_spec.even_batches,
          .drop_last = options.drop_last};
}

/// Position of the active pass, or the start of the next epoch.
/// \param here  State without a position.
[[nodiscard]] state::LoaderState loader_state(state::LoaderState here,
                                              const std::optional<ActiveIterator::Position>& position,
                                              const EpochCounter& epochs);

/// True if the next pass still resumes the loaded state after set_epoch(): the epoch is the state's own. Otherwise the
/// dropped position is logged.
[[nodiscard]] bool keeps_position(const std::optional<state::LoaderState>& resumed, int64_t epoch);

/// Warns once, because code that divides by the number of samples would fail.
void warn_about_empty_rank(const RankContext& place, std::string_view reason);
/// Reason why this rank has no batch although the epoch has at least one sample.
[[nodiscard]] std::string too_few_samples_reason(int64_t samples, const ShardOptions& shard);
/// Returns "; 3 are repeated to pad the last batches", or "" if no sample repeats.
[[nodiscard]] std::string duplicated_samples_text(int64_t samples);

/// \param least_samples  -1 if the number of samples may be unknown, otherwise 0.
/// \throws Error (usage) for numbers that no loader saves.
void check_loader_state(const state::LoaderState& state, int64_t least_samples);

}  // namespace accelerate::data

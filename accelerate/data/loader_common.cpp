// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/loader_common.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <string_view>

#include "accelerate/base/log.hpp"

namespace accelerate::data {

uint64_t fixed_seed(std::optional<uint64_t>& seed) {
  if (!seed) seed = at::detail::getDefaultCPUGenerator().current_seed();
  return *seed;
}

state::LoaderState loader_state(state::LoaderState here, const std::optional<ActiveIterator::Position>& position,
                                const EpochCounter& epochs) {
  if (!position || position->complete) {
    if (epochs.begun()) ++here.epoch;
    return here;
  }
  here.epoch = position->epoch;
  here.consumed = position->consumed;
  here.origin = position->consumed == 0 ? 0 : position->origin;
  if (position->samples > 0) here.samples = position->samples;
  return here;
}

bool keeps_position(const std::optional<state::LoaderState>& resumed, int64_t epoch) {
  if (!resumed || resumed->epoch == epoch) return resumed.has_value();
  base::log(base::LogLevel::info, {},
            "loader: set_epoch({}) drops the place that was loaded, after {} samples of epoch {}", epoch,
            resumed->consumed, resumed->epoch);
  return false;
}

void warn_about_empty_rank(const RankContext& place, std::string_view reason) {
  base::log_once(base::LogLevel::warning, place, "loader: this rank has no batch in a whole pass: {}", reason);
}

std::string too_few_samples_reason(int64_t samples, const ShardOptions& shard) {
  const int64_t ranks = shard.world_size;
  const int64_t each = shard.split_batches ? shard.batch_size / ranks : shard.batch_size;
  if (shard.drop_last || shard.drop_uneven) {
    return fmt::format(
        "{} samples are fewer than the {} of one step (batches of {}, {} ranks), and drop_last drops them", samples,
        shard.drop_last ? each * ranks : ranks, each, ranks);
  }
  return fmt::format("{} samples in batches of {} are too few for {} ranks, and even_batches is off", samples, each,
                     ranks);
}

std::string duplicated_samples_text(int64_t samples) {
  return samples == 0 ? "" : fmt::format("; {} of them are repeated to pad the last batches", samples);
}

void check_loader_state(const state::LoaderState& state, int64_t least_samples) {
  const auto refuse = [](std::string_view what, int64_t value, std::string_view rule, int64_t limit) {
    base::fail(ErrorKind::usage, {}, "load_state", "{} is {}, must be {} {}", what, value, rule, limit);
  };
  const auto at_least = [&](std::string_view what, int64_t value, int64_t limit) {
    if (value < limit) refuse(what, value, "at least", limit);
  };
  at_least("epoch", state.epoch, 0);
  if (state.epoch > EpochCounter::kMaxEpoch) refuse("epoch", state.epoch, "at most", EpochCounter::kMaxEpoch);
  at_least("samples", state.samples, least_samples);
  at_least("consumed", state.consumed, 0);
  if (state.samples >= 0 && state.consumed > state.samples)
    refuse("consumed", state.consumed, "at most the samples,", state.samples);
  at_least("origin", state.origin, 0);
  if (state.origin > state.consumed) refuse("origin", state.origin, "at most consumed,", state.consumed);
  at_least("world_size", state.world_size, 1);
  at_least("batch_size", state.batch_size, 1);
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/stream_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "accelerate/base/log.hpp"
#include "accelerate/data/loader_common.hpp"

namespace accelerate::data {
namespace {

constexpr int64_t kUnknown = -1;  // sample count of a state with unknown length

/// Number of following samples that are repeated; 0 if unknown.
int64_t repeated_of(const state::LoaderState& before, const ShardOptions& now) {
  if (before.samples < 0) return 0;
  const int64_t remainder = ShardPlan(before.samples - before.consumed, now).remainder();
  return remainder > 0 ? now.world_size * now.batch_size - remainder : 0;
}

void log_resharding(const state::LoaderState& before, const ShardOptions& now) {
  base::log(base::LogLevel::info, {},
            "loader: epoch {} of a stream continues after {} samples, seen in batches of {} on {} ranks; the following "
            "samples are sharded again, in batches of {} to {} ranks{}",
            before.epoch, before.consumed, before.batch_size, before.world_size, now.batch_size, now.world_size,
            duplicated_samples_text(repeated_of(before, now)));
}

}  // namespace

StreamCore::StreamCore(const StreamOptions& requested, std::optional<int64_t> known, bool random)
    : options(requested), samples(known), seeded(random) {
  check_common_options(options);
  if (options.num_workers > 1)
    base::fail(ErrorKind::usage, {}, "loader", "num_workers is {}, must be 0 or 1: a stream is read by one thread",
               options.num_workers);
}

void StreamCore::take(const ShardSpec& requested, const RankContext& place) {
  (void)ShardPlan(0, shard_options_of(options, requested), place);
  shard_spec = requested;
  place_ = place;
}

uint64_t StreamCore::seed() { return fixed_seed(options.seed); }

state::LoaderState StreamCore::here() {
  return epoch_start(epochs.epoch(), known_samples().value_or(kUnknown), "",
                     seeded ? std::optional(seed()) : std::nullopt, options, shard_spec);
}

state::LoaderState StreamCore::state() {
  if (resumed) return *resumed;
  return loader_state(here(), latest.position(), epochs);
}

void StreamCore::load_state(const state::LoaderState& from) {
  check_loader_state(from, kUnknown);
  if (shard_spec.reads && from.consumed > 0 && from.samples != samples.value_or(kUnknown)) {
    base::fail(ErrorKind::usage, {}, "load_state",
               "the state is of a stream of {} samples, this one has {} (-1 means unknown)", from.samples,
               samples.value_or(kUnknown));
  }
  samples_elsewhere_ = from.samples == kUnknown ? std::nullopt : std::optional(from.samples);
  epochs.set(from.epoch);
  if (from.seed) options.seed = from.seed;
  latest.clear_passes();
  clear_position();
  if (from.consumed > 0) resumed = from;
}

void StreamCore::set_position(const state::LoaderState& there) {
  load_state(there);
  restore_loaded_position(*this);
}

StreamCore::Beginning StreamCore::next_pass() {
  epochs.next();
  Beginning pass{.context = {.seed = seeded ? seed() : 0, .epoch = epochs.epoch()},
                 .shard = shard_options(),
                 .origin = 0,
                 .consumed = 0};
  pass.shard.batch_size = ShardPlan(0, pass.shard).batch_size();
  pass.shard.split_batches = false;
  const int64_t round = pass.shard.world_size * pass.shard.batch_size;
  if (resumed) {
    const bool anew = !resumed->has_same_sharding(here()) || (resumed->consumed - resumed->origin) % round != 0;
    pass.origin = anew ? resumed->consumed : resumed->origin;
    pass.consumed = resumed->consumed - pass.origin;
    if (anew) log_resharding(*resumed, pass.shard);
  }
  const int64_t of_rest =
      std::max<int64_t>(skipped_in_epoch() * round - pass.origin, 0) / round * round;  // in whole rounds
  pass.consumed = std::max(pass.consumed, of_rest) + skipped_in_remainder * round;
  return pass;
}

int64_t StreamCore::begin(const Beginning& pass) {
  clear_position();
  epochs.begin();
  return latest.begin({.epoch = pass.context.epoch, .origin = pass.origin, .consumed = pass.origin + pass.consumed});
}

void StreamCore::end_pass(int64_t pass, int64_t epoch) {
  latest.end(pass);
  if (epochs.end(epoch) && options.log_report && shard_spec.reports) log_report(epoch, *report);
}

void StreamCore::set_epoch(int64_t epoch) {
  epochs.set(epoch);
  latest.clear_passes();
  if (keeps_position(resumed, epoch)) return;
  clear_position();
}

std::shared_ptr<StreamCore> StreamCore::with_skipped_front() { return core_for_front(*this, with_front(here())); }

void StreamCore::warn_about_empty_rank(const Beginning& pass, int64_t given) const {
  const int64_t before = pass.origin + pass.consumed;
  const auto reason = [&]() -> std::string {
    if (given == 0) return "its stream is empty, 0 samples";
    if (given <= before)
      return fmt::format("{} samples were seen or are skipped, and its stream has {}", before, given);
    return too_few_samples_reason(given - before, pass.shard);
  };
  data::warn_about_empty_rank(place_, reason());
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/stream_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "accelerate/base/log.hpp"
#include "accelerate/data/core_parts.hpp"

namespace accelerate::data {
namespace {

constexpr int64_t kUnknown = -1;  // sample count of a state with unknown length

/// Number of following samples that are repeated; 0 if unknown.
int64_t repeated_of(const state::LoaderState& before, const ShardOptions& now) {
  if (before.samples < 0) return 0;
  const int64_t remainder = ShardPlan(before.samples - before.consumed, now).remainder();
  return remainder > 0 ? now.world_size * now.batch_size - remainder : 0;
}

void say_shared_out_anew(const state::LoaderState& before, const ShardOptions& now) {
  base::log(base::LogLevel::info, {},
            "loader: epoch {} of a stream continues after {} samples, seen in batches of {} on {} ranks; what follows "
            "is sharded again, in batches of {} to {} ranks{}",
            before.epoch, before.consumed, before.batch_size, before.world_size, now.batch_size, now.world_size,
            repeated_text(repeated_of(before, now)));
}

}  // namespace

StreamCore::StreamCore(const StreamOptions& asked, std::optional<int64_t> known, bool random)
    : options(asked), samples(known), seeded(random) {
  check_common_options(options);
  if (options.num_workers > 1)
    base::fail(ErrorKind::usage, {}, "loader", "num_workers is {}, must be 0 or 1: a stream is read by one thread",
               options.num_workers);
}

void StreamCore::take(const Share& asked, const Place& place) {
  (void)ShardPlan(0, shard_options_of(options, asked), place);
  share = asked;
  place_ = place;
}

uint64_t StreamCore::seed() { return fixed_seed(options.seed); }

state::LoaderState StreamCore::here() {
  return beginning_of(epochs.epoch(), known_samples().value_or(kUnknown), "",
                      seeded ? std::optional(seed()) : std::nullopt, options, share);
}

state::LoaderState StreamCore::state() {
  if (resumed) return *resumed;
  return state_of(here(), latest.position(), epochs);
}

void StreamCore::load_state(const state::LoaderState& from) {
  check_state(from, kUnknown);
  if (share.reads && from.consumed > 0 && from.samples != samples.value_or(kUnknown)) {
    base::fail(ErrorKind::usage, {}, "load_state",
               "the state is of a stream of {} samples, this one has {} (-1: not known)", from.samples,
               samples.value_or(kUnknown));
  }
  samples_elsewhere_ = from.samples == kUnknown ? std::nullopt : std::optional(from.samples);
  epochs.set(from.epoch);
  if (from.seed) options.seed = from.seed;
  latest.forget();
  forget_position();
  if (from.consumed > 0) resumed = from;
}

void StreamCore::stands_at(const state::LoaderState& there) {
  load_state(there);
  leave_where_loaded(*this);
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
    const bool anew = !resumed->shared_out_as(here()) || (resumed->consumed - resumed->origin) % round != 0;
    pass.origin = anew ? resumed->consumed : resumed->origin;
    pass.consumed = resumed->consumed - pass.origin;
    if (anew) say_shared_out_anew(*resumed, pass.shard);
  }
  const int64_t of_rest =
      std::max<int64_t>(skipped_of_epoch() * round - pass.origin, 0) / round * round;  // in whole rounds
  pass.consumed = std::max(pass.consumed, of_rest) + skipped_of_rest * round;
  return pass;
}

int64_t StreamCore::begin(const Beginning& pass) {
  forget_position();
  epochs.begin();
  return latest.begin({.epoch = pass.context.epoch, .origin = pass.origin, .consumed = pass.origin + pass.consumed});
}

void StreamCore::end_pass(int64_t pass, int64_t epoch) {
  latest.end(pass);
  if (epochs.end(epoch) && options.log_report && share.reports) log_report(epoch, *report);
}

void StreamCore::set_epoch(int64_t epoch) {
  epochs.set(epoch);
  latest.forget();
  if (keeps_place(resumed, epoch)) return;
  forget_position();
}

std::shared_ptr<StreamCore> StreamCore::with_its_front() { return core_beside(*this, with_front(here())); }

void StreamCore::warn_of_no_batch(const Beginning& pass, int64_t given) const {
  const int64_t before = pass.origin + pass.consumed;
  const auto why = [&]() -> std::string {
    if (given == 0) return "its stream is empty, 0 samples";
    if (given <= before)
      return fmt::format("{} samples were seen or are skipped, and its stream has {}", before, given);
    return why_too_few(given - before, pass.shard);
  };
  data::warn_of_no_batch(place_, why());
}

}  // namespace accelerate::data

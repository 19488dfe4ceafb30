// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/stream_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "accelerate/base/log.hpp"
#include "accelerate/data/core_parts.hpp"

namespace accelerate::data {
namespace {

constexpr int64_t kUnknown = -1;  // number of samples in a state

/// How many of the samples that follow come twice; 0 where nobody knows.
int64_t repeated_of(const state::LoaderState& before, const ShardOptions& now) {
  if (before.samples < 0) return 0;
  const int64_t remainder = ShardPlan(before.samples - before.consumed, now).remainder();
  return remainder > 0 ? now.world_size * now.batch_size - remainder : 0;
}

void say_shared_out_anew(const state::LoaderState& before, const ShardOptions& now) {
  base::log(base::LogLevel::info, {},
            "loader: epoch {} of a stream goes on after {} samples, seen in batches of {} on {} ranks; what follows "
            "is shared out anew, in batches of {} to {} ranks{}",
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
  if (resumed_) return *resumed_;
  return state_of(here(), latest_.position(), epochs);
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
  latest_.forget();
  forget_position();
  if (from.consumed > 0) resumed_ = from;
}

void StreamCore::stands_at(const state::LoaderState& there) {
  load_state(there);
  if (!resumed_) return;  // between passes
  forget_position();
  epochs.begin();
  (void)latest_.begin(position_at(there));
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
  if (resumed_) {
    const bool anew = !resumed_->shared_out_as(here()) || (resumed_->consumed - resumed_->origin) % round != 0;
    pass.origin = anew ? resumed_->consumed : resumed_->origin;
    pass.consumed = resumed_->consumed - pass.origin;
    if (anew) say_shared_out_anew(*resumed_, pass.shard);
  }
  const int64_t of_epoch = skipped_ - skipped_of_rest_;  // what was seen of it is not skipped again
  const int64_t of_rest = std::max<int64_t>(of_epoch * round - pass.origin, 0) / round * round;  // whole batches
  pass.consumed = std::max(pass.consumed, of_rest) + skipped_of_rest_ * round;
  return pass;
}

int64_t StreamCore::begin(const Beginning& pass) {
  forget_position();
  epochs.begin();
  return latest_.begin({.epoch = pass.context.epoch, .origin = pass.origin, .consumed = pass.origin + pass.consumed});
}

void StreamCore::end_pass(int64_t pass, int64_t epoch) {
  latest_.end(pass);
  if (epochs.end(epoch) && options.log_report && share.reports) log_report(epoch, *report);
}

void StreamCore::set_epoch(int64_t epoch) {
  epochs.set(epoch);
  latest_.forget();
  if (keeps_place(resumed_, epoch)) return;
  forget_position();
}

std::shared_ptr<StreamCore> StreamCore::with_its_front() {
  const bool goes_on = resumed_ && resumed_->shared_out_as(here());  // shared out anew it has a front of its own
  if (skipped_ == 0 && !goes_on) return nullptr;
  auto other = std::make_shared<StreamCore>(*this);
  other->skipped_ = other->skipped_of_rest_ = 0;
  if (goes_on) other->resumed_->consumed = other->resumed_->origin;
  if (goes_on && other->resumed_->consumed == 0) other->resumed_.reset();
  other->options.num_workers = 0;
  other->options.log_report = false;
  other->report = std::make_shared<LoadReport>();
  return other;
}

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

void StreamCore::skip(int64_t batches) {
  report = std::make_shared<LoadReport>();
  skipped_ += batches;
  if (resumed_) skipped_of_rest_ += batches;
}

void StreamCore::forget_position() {
  resumed_.reset();
  skipped_of_rest_ = 0;
}

}  // namespace accelerate::data

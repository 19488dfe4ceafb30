// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/stream_core.hpp"

#include "accelerate/base/log.hpp"
#include "accelerate/data/core_parts.hpp"

namespace accelerate::data {
namespace {

constexpr int64_t kUnknown = -1;  // number of samples in a state

}  // namespace

StreamCore::StreamCore(const StreamOptions& asked, std::optional<int64_t> known, bool random)
    : options(asked), samples(known), seeded(random) {
  if (options.batch_size < 1)
    base::fail(ErrorKind::usage, {}, "loader", "batch_size is {}, must be at least 1", options.batch_size);
}

void StreamCore::take(const Share& asked, const Place& place) {
  (void)ShardPlan(0, shard_options_of(options, asked), place);
  share = asked;
}

uint64_t StreamCore::seed() { return fixed_seed(options.seed); }

state::LoaderState StreamCore::here() {
  return beginning_of(epochs.epoch(), samples.value_or(kUnknown), seeded ? std::optional(seed()) : std::nullopt,
                      options, share);
}

state::LoaderState StreamCore::state() {
  if (resumed_) return *resumed_;
  auto state = here();
  if (!epochs.begun()) return state;
  if (complete_) {
    ++state.epoch;
    return state;
  }
  state.consumed = consumed_;
  state.origin = consumed_ == 0 ? 0 : origin_;
  return state;
}

void StreamCore::load_state(const state::LoaderState& from) {
  check_state(from, kUnknown);
  if (from.consumed > 0 && from.samples != samples.value_or(kUnknown)) {
    base::fail(ErrorKind::usage, {}, "load_state",
               "the state is of a stream of {} samples, this one has {} (-1: not known)", from.samples,
               samples.value_or(kUnknown));
  }
  epochs.set(from.epoch);
  if (from.seed) options.seed = from.seed;
  resumed_.reset();
  if (from.consumed > 0) resumed_ = from;
}

StreamCore::Beginning StreamCore::begin_pass() {
  epochs.next();
  Beginning pass{.context = {.seed = seeded ? seed() : 0, .epoch = epochs.epoch()},
                 .shard = shard_options(),
                 .origin = 0,
                 .consumed = 0,
                 .number = ++pass_};
  pass.shard.batch_size = ShardPlan(0, pass.shard).batch_size();
  pass.shard.split_batches = false;
  if (resumed_) {
    const int64_t since = resumed_->consumed - resumed_->origin;
    const bool anew = !resumed_->shared_out_as(here()) || since % (pass.shard.world_size * pass.shard.batch_size) != 0;
    pass.origin = anew ? resumed_->consumed : resumed_->origin;
    pass.consumed = resumed_->consumed - pass.origin;
    if (anew) {
      base::log(
          base::LogLevel::info, {},
          "loader: epoch {} of a stream goes on after {} samples, seen in batches of {} on {} ranks; what follows "
          "is shared out anew, in batches of {} to {} ranks",
          resumed_->epoch, resumed_->consumed, resumed_->batch_size, resumed_->world_size, pass.shard.batch_size,
          share.world_size);
    }
    resumed_.reset();
  }
  epochs.begin();
  origin_ = pass.origin;
  consumed_ = pass.origin + pass.consumed;
  complete_ = false;
  return pass;
}

void StreamCore::tell(int64_t number, int64_t consumed, bool complete) {
  if (number != pass_) return;
  consumed_ = consumed;
  complete_ = complete;
}

void StreamCore::set_epoch(int64_t epoch) {
  epochs.set(epoch);
  resumed_.reset();
}

}  // namespace accelerate::data

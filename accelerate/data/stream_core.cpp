// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/stream_core.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include "accelerate/base/log.hpp"

namespace accelerate::data {
namespace {

constexpr int64_t kUnknown = -1;  // number of samples in a state

}  // namespace

StreamCore::StreamCore(const StreamOptions& asked, std::optional<int64_t> known, bool random)
    : options(asked), samples(known), seeded(random) {
  if (options.batch_size < 1)
    base::fail(ErrorKind::usage, {}, "loader", "batch_size is {}, must be at least 1", options.batch_size);
}

ShardOptions StreamCore::shard_options(const Share& whose) const {
  return {.rank = whose.rank,
          .world_size = whose.world_size,
          .batch_size = options.batch_size,
          .split_batches = whose.split_batches,
          .drop_last = options.drop_last,
          .even_batches = whose.even_batches && whose.world_size > 1};
}

void StreamCore::take(const Share& asked, const Place& place) {
  (void)ShardPlan(0, shard_options(asked), place);
  share = asked;
}

uint64_t StreamCore::seed() {
  if (!options.seed) options.seed = at::detail::getDefaultCPUGenerator().current_seed();
  return *options.seed;
}

state::LoaderState StreamCore::here() {
  return {.epoch = epochs.epoch(),
          .samples = samples.value_or(kUnknown),
          .seed = seeded ? std::optional(seed()) : std::nullopt,
          .world_size = share.world_size,
          .batch_size = options.batch_size,
          .split_batches = share.split_batches,
          .even_batches = share.even_batches,
          .drop_last = options.drop_last};
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
  if (from.consumed < 0 || from.origin < 0 || from.origin > from.consumed) {
    base::fail(ErrorKind::usage, {}, "load_state",
               "consumed is {} and origin {}, must be at least 0, and consumed not less than origin", from.consumed,
               from.origin);
  }
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
    const bool anew = !resumed_->shared_out_as(here());
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

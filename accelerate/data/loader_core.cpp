// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/loader_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/data/loader_common.hpp"

namespace accelerate::data {
namespace {

void check_numbers(const at::Tensor& order, int64_t samples, int64_t epoch, std::string_view source) {
  const auto* const numbers = order.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < order.numel(); ++i) {
    if (numbers[i] >= 0 && numbers[i] < samples) continue;
    base::fail(ErrorKind::usage, {}, "loader", "the {} requests sample {} in epoch {}, there are {} samples", source,
               numbers[i], epoch, samples);
  }
}

void check_options(const LoaderOptions& options) {
  const auto refuse = [](std::string_view one, std::string_view other) {
    base::fail(ErrorKind::usage, {}, "loader",
               "{} and {} are both given, and each determines the order of samples; remove one", one, other);
  };
  check_common_options(options);
  if (options.shuffle && options.sampler) refuse("shuffle", "a sampler");
  if (!options.batch_sampler) return;
  if (options.batch_size != 1) refuse("batch_size", "a batch_sampler");
  if (options.shuffle) refuse("shuffle", "a batch_sampler");
  if (options.sampler) refuse("a sampler", "a batch_sampler");
  if (options.drop_last) refuse("drop_last", "a batch_sampler");
}

void check_same_length(const state::LoaderState& state, int64_t samples) {
  if (state.consumed == 0 || state.samples == samples) return;
  base::fail(
      ErrorKind::usage, {}, "load_state",
      "the state is of an epoch of {} samples, of which {} were seen; this loader's has {}. Resume with the data "
      "and sampler that it was saved with, or begin a new epoch with set_epoch({})",
      state.samples, state.consumed, samples, state.epoch + 1);
}

/// A position is only valid in the same kind of order, even if the lengths are equal.
void check_same_order(const state::LoaderState& state, std::string_view kind) {
  if (state.consumed == 0 || state.order.empty() || state.order == kind) return;
  base::fail(
      ErrorKind::usage, {}, "load_state",
      "the state is of an epoch with the order {}, of which {} of {} samples were seen; this loader has the order "
      "{}, in which other samples come first. Resume with the sampler that it was saved with, or begin a new epoch "
      "with set_epoch({})",
      state.order, state.consumed, state.samples, kind, state.epoch + 1);
}

/// A sampler with an explicit rank must match this rank.
void check_replica(const DistributedOptions& options, const ShardSpec& shard_spec, const RankContext& place) {
  if (!options.rank || (*options.rank == shard_spec.rank && *options.num_replicas == shard_spec.world_size)) return;
  base::fail(ErrorKind::usage, place, "loader",
             "its distributed_sampler is for rank {} of {}, the loader reads for rank {} of {}; do not set "
             "num_replicas and rank: the loader receives them",
             *options.rank, *options.num_replicas, shard_spec.rank, shard_spec.world_size);
}

void log_resharding(const state::LoaderState& before, const EpochBatches& now, int64_t ranks) {
  base::log(base::LogLevel::info, {},
            "loader: epoch {} continues after {} of {} samples, seen in batches of {} on {} ranks; the other {} are "
            "sharded again, in batches of {} to {} ranks{}",
            before.epoch, before.consumed, before.samples, before.batch_size, before.world_size, now.order().size(0),
            now.batch_size(), ranks, duplicated_samples_text(now.repeated()));
}

}  // namespace

LoaderBase::Core::Core(int64_t source_samples, const LoaderOptions& requested, bool seeded_source)
    : samples(source_samples), options(requested), seeded(seeded_source) {
  check_options(options);
  sampler = options.sampler;
  if (!sampler && !options.batch_sampler) {
    sampler = options.shuffle ? random_sampler(samples) : sequential_sampler(samples);
  }
  if (strided() && sampler->distributed()->rank) {
    shard_spec.rank = *sampler->distributed()->rank;
    shard_spec.world_size = *sampler->distributed()->num_replicas;
  }
}

ShardOptions LoaderBase::Core::shard_options(const ShardSpec& spec) const {
  auto shard = shard_options_of(options, spec);
  shard.strided = strided();
  shard.drop_uneven = strided() && sampler->distributed()->drop_last;
  return shard;
}

void LoaderBase::Core::take(const ShardSpec& requested, const RankContext& where) {
  ShardOptions checked = shard_options(requested);
  if (!sampler) checked.split_batches = false;  // its batches determine the split later
  (void)ShardPlan(0, checked, where);
  if (strided()) check_replica(*sampler->distributed(), requested, where);
  shard_spec = requested;
  place = where;
  if (shard_spec.reads) samples_elsewhere_.reset();
}

uint64_t LoaderBase::Core::seed() { return fixed_seed(options.seed); }

at::Tensor LoaderBase::Core::order() {
  const auto order = sampler->order(shuffles() ? seed() : 0, epochs.epoch());
  if (!order.defined() || order.dim() != 1 || order.size(0) != sampler->size() || order.scalar_type() != at::kLong ||
      !order.is_cpu()) {
    base::fail(ErrorKind::usage, {}, "loader", "the sampler returns {} in epoch {}, must be [{}] int64 on the CPU",
               order.defined() ? order.toString() + c10::str(order.sizes()) : "no tensor", epochs.epoch(),
               sampler->size());
  }
  return order.contiguous();
}

EpochBatches LoaderBase::Core::batches(int64_t from) {
  if (sampler) {
    const auto all = order();
    if (options.sampler) check_numbers(all, samples, epochs.epoch(), "sampler");
    return {all, shard_options(), from};
  }
  EpochBatches made(options.batch_sampler(seed(), epochs.epoch()), shard_options(), from);
  if (shard_spec.reads) check_numbers(made.order(), samples, epochs.epoch(), "batch sampler");
  return made;
}

int64_t LoaderBase::Core::size() {
  const int64_t all = sampler ? ShardPlan(order_length(), shard_options()).size() : batches().size();
  return std::max<int64_t>(all - skipped, 0);
}

int64_t LoaderBase::Core::batch_size() {
  return sampler ? ShardPlan(0, shard_options()).batch_size() : batches().batch_size();
}

LoaderBase::Core::Beginning LoaderBase::Core::begin_epoch() {
  epochs.next();
  bool anew = resumed && !resumed->has_same_sharding(here());
  int64_t from = 0;
  if (resumed) from = anew ? resumed->consumed : resumed->origin;
  auto made = batches(from);  // throws before the pass counts
  // the position is within a step
  if (resumed && made.consumed(made.batches_for(resumed->consumed)) != resumed->consumed) {
    anew = true;
    from = resumed->consumed;
    made = batches(from);
  }
  int64_t first = skipped;
  if (resumed) {
    check_same_length(*resumed, made.samples());
    first = first_of_rest(made);
    if (anew) log_resharding(*resumed, made, shard_spec.world_size);
    clear_position();
  }
  if (first >= made.size()) warn_about_empty_rank(place, empty_rank_reason(made, first));
  epochs.begin();
  samples_of_pass = made.samples();
  const int64_t consumed = made.consumed(first);
  const int64_t number = latest.begin({.epoch = epochs.epoch(),
                                       .origin = from,
                                       .consumed = consumed,
                                       .samples = made.samples(),
                                       .complete = consumed >= made.samples()});
  return {std::move(made), first, number};
}

int64_t LoaderBase::Core::first_of_rest(const EpochBatches& rest) {
  int64_t first = rest.batches_for(resumed->consumed);
  if (const int64_t of_epoch = skipped_in_epoch(); of_epoch > 0) {
    const int64_t position = batches().consumed(of_epoch);
    first = std::max(first, position < rest.samples() ? rest.batches_for(position) : rest.size());
  }
  return first + skipped_in_remainder;
}

std::string LoaderBase::Core::empty_rank_reason(const EpochBatches& made, int64_t first) const {
  const int64_t left = made.order().size(0);
  if (made.samples() == 0 && samples == 0) return "its data are empty, 0 samples";
  if (made.samples() == 0) return fmt::format("its order is {} and visits 0 of {} samples", kind(), samples);
  if (left == 0) return fmt::format("all {} samples of the epoch were seen before", made.samples());
  if (made.size() > 0) return fmt::format("{} batches were seen or are skipped, and there are {}", first, made.size());
  return too_few_samples_reason(left, shard_options());
}

state::LoaderState LoaderBase::Core::here() {
  return epoch_start(epochs.epoch(), sampler ? order_length() : samples_of_pass, kind(),
                     shuffles() ? std::optional(seed()) : std::nullopt, options, shard_spec);
}

state::LoaderState LoaderBase::Core::state() {
  if (resumed) return *resumed;
  return loader_state(here(), latest.position(), epochs);
}

void LoaderBase::Core::load_state(const state::LoaderState& from) {
  check_loader_state(from, 0);
  if (shard_spec.reads) {
    if (sampler) check_same_length(from, sampler->size());
    check_same_order(from, kind());
  } else {
    samples_of_pass = from.samples;
    samples_elsewhere_ = from.samples;
  }
  if (from.seed) options.seed = from.seed;
  epochs.set(from.epoch);
  latest.clear_passes();
  clear_position();
  if (from.consumed > 0) resumed = from;
}

void LoaderBase::Core::set_position(const state::LoaderState& there) {
  load_state(there);
  restore_loaded_position(*this);
}

std::shared_ptr<LoaderBase::Core> LoaderBase::Core::with_skipped_front() {
  return core_for_front(*this, with_front(here()));
}

void LoaderBase::Core::set_epoch(int64_t epoch) {
  epochs.set(epoch);
  latest.clear_passes();
  if (keeps_position(resumed, epoch)) return;
  clear_position();
}

}  // namespace accelerate::data

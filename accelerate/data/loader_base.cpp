// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/loader_base.hpp"

#include <algorithm>
#include <utility>

#include "accelerate/data/loader_core.hpp"

namespace accelerate::data {

struct LoaderBase::Pass::Steps {
  std::shared_ptr<Core> loader;
  std::shared_ptr<const EpochBatches> batches;
  int64_t first;   // number of the pass's first batch
  int64_t number;  // number of the pass
  ReadContext context;
  state::BatchInfo info;
  LoadingTimer clock;
  int64_t samples = 0;  // samples of the requested batch

  ~Steps() { loader->latest.release(number, info.index == 0); }

  [[nodiscard]] int64_t batch() const { return first + info.index; }
  [[nodiscard]] int64_t last_batch() const { return batches->size() - 1; }
  void advance_to() const {
    const int64_t consumed = batches->consumed(batch() + 1);
    loader->latest.advance_to(number, consumed, consumed >= batches->samples());
  }
  void end() const {
    loader->latest.end(number);
    const bool first_time = loader->epochs.end(context.epoch);
    if (loader->options.log_report && loader->shard_spec.reports && first_time)
      log_report(context.epoch, *clock.report());
  }
};

LoaderBase::Pass::Pass(std::shared_ptr<Core> loader, const LoadingReport& workers) {
  auto pass = loader->begin_epoch();
  const int64_t remainder = pass.batches.remainder();
  const ReadContext context{
      .seed = loader->shuffles() ? loader->seed() : 0, .epoch = loader->epochs.epoch(), .pinned = loader->pinned};
  const int64_t first = std::min(pass.first, pass.batches.size());  // skipped may exceed the number of batches
  steps_.reset(new Steps{.loader = loader,
                         .batches = std::make_shared<const EpochBatches>(std::move(pass.batches)),
                         .first = first,
                         .number = pass.number,
                         .context = context,
                         .info = {.remainder = remainder, .strided = loader->strided()},
                         .clock = LoadingTimer(workers)});
  loader->report = steps_->clock.report();
}

LoaderBase::Pass::~Pass() = default;

bool LoaderBase::Pass::ended() const { return steps_->batch() > steps_->last_batch(); }

int64_t LoaderBase::Pass::size() const { return std::max<int64_t>(steps_->batches->size() - steps_->first, 0); }

const ReadContext& LoaderBase::Pass::context() const { return steps_->context; }

const state::BatchInfo& LoaderBase::Pass::info() const { return steps_->info; }

SamplerFingerprint LoaderBase::Pass::sampler_fingerprint() const {
  const auto& batches = *steps_->batches;
  return {.epoch = steps_->context.epoch, .samples = batches.order().size(0), .checksum = batches.checksum()};
}

std::function<at::Tensor(int64_t)> LoaderBase::Pass::indices() const {
  return [batches = steps_->batches, first = steps_->first](int64_t number) { return batches->batch(first + number); };
}

at::Tensor LoaderBase::Pass::advance() {
  if (ended()) return {};
  auto& info = steps_->info;
  ++info.index;
  info.last = steps_->batch() == steps_->last_batch();
  steps_->clock.start_request();
  if (ended()) {
    steps_->end();
    return {};
  }
  auto indices = steps_->batches->batch(steps_->batch());
  steps_->samples = indices.size(0);
  return indices;
}

void LoaderBase::Pass::arrived(std::optional<Clock::time_point> since) {
  steps_->advance_to();
  steps_->clock.arrived(steps_->samples, since);
}

void LoaderBase::Pass::waited(Clock::duration duration) { steps_->clock.waited(duration); }

at::Tensor LoaderBase::Pass::next_indices() const {
  const int64_t next = steps_->batch() + 1;
  return next <= steps_->last_batch() ? steps_->batches->batch(next) : at::Tensor();
}

LoaderBase::LoaderBase(int64_t samples, const LoaderOptions& options, bool seeded)
    : core_(std::make_shared<Core>(samples, options, seeded)) {}

std::shared_ptr<LoaderBase::Core> LoaderBase::skipping(int64_t batches) const {
  check_skipped(batches);
  auto other = std::make_shared<Core>(*core_);
  other->skip(batches);
  other->report = std::make_shared<LoadingReport>();
  return other;
}

std::shared_ptr<LoaderBase::Core> LoaderBase::core_with_skipped_front() const { return core_->with_skipped_front(); }

void LoaderBase::shard(const ShardSpec& shard_spec, const RankContext& place) { core_->take(shard_spec, place); }
int64_t LoaderBase::size() const { return core_->size(); }
int64_t LoaderBase::sample_count() const { return core_->samples; }
int64_t LoaderBase::batch_size() const { return core_->batch_size(); }
int64_t LoaderBase::total_batch_size() const { return batch_size() * core_->shard_spec.world_size; }
const ShardSpec& LoaderBase::shard_spec() const { return core_->shard_spec; }
const LoaderOptions& LoaderBase::options() const { return core_->options; }
int64_t LoaderBase::epoch() const { return core_->epochs.epoch(); }
state::LoaderState LoaderBase::state() const { return core_->state(); }
void LoaderBase::load_state(const state::LoaderState& state) { core_->load_state(state); }
void LoaderBase::set_position(const state::LoaderState& state) { core_->set_position(state); }
uint64_t LoaderBase::seed() const { return core_->seed(); }
void LoaderBase::set_seed(uint64_t seed) { core_->options.seed = seed; }
void LoaderBase::read_pinned(bool on) { core_->pinned = on; }
bool LoaderBase::shuffles() const { return core_->shuffles(); }
LoadingReport LoaderBase::report() const { return *core_->report; }

void LoaderBase::set_epoch(int64_t epoch) { core_->set_epoch(epoch); }

}  // namespace accelerate::data

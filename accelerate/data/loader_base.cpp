// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/loader_base.hpp"

#include <utility>

#include "accelerate/data/loader_core.hpp"

namespace accelerate::data {

struct LoaderBase::Pass::Steps {
  std::shared_ptr<Core> loader;
  Core::Beginning pass;
  ReadContext context;
  state::BatchInfo info;

  [[nodiscard]] int64_t batch() const { return pass.first + info.index; }
  [[nodiscard]] int64_t last_batch() const { return pass.batches.size() - 1; }
  void tell_consumed() const {
    if (loader->pass == pass.number) loader->consumed = pass.batches.consumed(batch() + 1);
  }
};

LoaderBase::Pass::Pass(std::shared_ptr<Core> loader) {
  auto pass = loader->begin_epoch();
  const int64_t remainder = pass.batches.remainder();
  const ReadContext context{.seed = loader->shuffles() ? loader->seed() : 0, .epoch = loader->epoch};
  steps_ = std::make_unique<Steps>(Steps{loader, std::move(pass), context, {.remainder = remainder}});
}

LoaderBase::Pass::~Pass() = default;

bool LoaderBase::Pass::ended() const { return steps_->batch() > steps_->last_batch(); }

const ReadContext& LoaderBase::Pass::context() const { return steps_->context; }

const state::BatchInfo& LoaderBase::Pass::info() const { return steps_->info; }

at::Tensor LoaderBase::Pass::advance() {
  if (ended()) return {};
  auto& info = steps_->info;
  ++info.index;
  info.last = steps_->batch() == steps_->last_batch();
  if (ended()) {
    steps_->loader->end_epoch(steps_->context.epoch);
    return {};
  }
  steps_->tell_consumed();
  return steps_->pass.batches.batch(steps_->batch());
}

LoaderBase::LoaderBase(int64_t samples, const LoaderOptions& options, bool seeded)
    : core_(std::make_shared<Core>(samples, options, seeded)) {}

std::shared_ptr<LoaderBase::Core> LoaderBase::skipping(int64_t batches) const {
  check_skipped(batches);
  auto other = std::make_shared<Core>(*core_);
  other->skipped += batches;
  return other;
}

void LoaderBase::shard(const Share& share, const Place& place) { core_->take(share, place); }
int64_t LoaderBase::size() const { return core_->size(); }
int64_t LoaderBase::sample_count() const { return core_->samples; }
int64_t LoaderBase::batch_size() const { return core_->batch_size(); }
int64_t LoaderBase::total_batch_size() const { return batch_size() * core_->share.world_size; }
const Share& LoaderBase::share() const { return core_->share; }
const LoaderOptions& LoaderBase::options() const { return core_->options; }
int64_t LoaderBase::epoch() const { return core_->epoch; }
state::LoaderState LoaderBase::state() const { return core_->state(); }
void LoaderBase::load_state(const state::LoaderState& state) { core_->load_state(state); }
uint64_t LoaderBase::seed() const { return core_->seed(); }
void LoaderBase::set_seed(uint64_t seed) { core_->options.seed = seed; }
bool LoaderBase::shuffles() const { return core_->shuffles(); }

void LoaderBase::set_epoch(int64_t epoch) {
  if (epoch < 0) base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, must be at least 0", epoch);
  core_->epoch = epoch;
  core_->begun = false;
  core_->resumed.reset();
}

}  // namespace accelerate::data

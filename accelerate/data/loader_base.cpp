// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/loader_base.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "accelerate/data/order.hpp"
#include "accelerate/data/shard.hpp"

namespace accelerate::data {

struct LoaderBase::Impl {
  int64_t samples;
  LoaderOptions options;
  Share share{};
  int64_t epoch = 0;
  bool begun = false;  // a pass of `epoch` began

  [[nodiscard]] ShardPlan plan(const Place& place = {}) const {
    return {samples,
            {.rank = share.rank,
             .world_size = share.world_size,
             .batch_size = options.batch_size,
             .split_batches = share.split_batches,
             .drop_last = options.drop_last,
             .even_batches = share.even_batches && share.world_size > 1},
            place};
  }

  // Of one rank nothing is filled, but its short batch has a remainder all the same.
  [[nodiscard]] int64_t remainder() const {
    if (share.world_size == 1 && !options.drop_last) return samples % options.batch_size;
    return plan().remainder();
  }

  uint64_t seed() {
    if (!options.seed) options.seed = at::detail::getDefaultCPUGenerator().current_seed();
    return *options.seed;
  }

  at::Tensor begin_epoch() {
    if (begun) ++epoch;
    begun = true;
    return epoch_order(samples, options.shuffle, options.shuffle ? seed() : 0, epoch);
  }

  void end_epoch(int64_t ended) {
    if (epoch != ended || !begun) return;  // set_epoch was called, or another pass began
    ++epoch;
    begun = false;
  }
};

struct LoaderBase::Pass::Steps {
  std::shared_ptr<Impl> loader;
  at::Tensor order;
  ShardPlan plan;
  int64_t epoch;
  state::BatchInfo info;

  [[nodiscard]] at::Tensor indices() const {
    const BatchRange range = plan.batch(info.index);
    if (range.filling == 0) return order.narrow(0, range.first, range.real);
    auto filled = at::empty({range.real + range.filling}, order.options());
    const int64_t* from = order.const_data_ptr<int64_t>();
    int64_t* to = std::copy_n(from + range.first, range.real, filled.data_ptr<int64_t>());
    for (int64_t i = 0; i < range.filling; ++i) *to++ = from[(range.fill_first + i) % range.pool];
    return filled;
  }
};

LoaderBase::Pass::Pass(std::shared_ptr<Impl> loader) {
  auto order = loader->begin_epoch();
  steps_ = std::make_unique<Steps>(
      Steps{loader, std::move(order), loader->plan(), loader->epoch, {.remainder = loader->remainder()}});
}

LoaderBase::Pass::~Pass() = default;

bool LoaderBase::Pass::ended() const { return steps_->info.index >= steps_->plan.size(); }

const state::BatchInfo& LoaderBase::Pass::info() const { return steps_->info; }

at::Tensor LoaderBase::Pass::advance() {
  if (ended()) return {};
  auto& info = steps_->info;
  ++info.index;
  info.last = info.index == steps_->plan.size() - 1;
  if (!ended()) return steps_->indices();
  steps_->loader->end_epoch(steps_->epoch);
  return {};
}

LoaderBase::LoaderBase(int64_t samples, const LoaderOptions& options)
    : impl_(std::make_shared<Impl>(Impl{.samples = samples, .options = options})) {
  if (options.batch_size < 1)
    base::fail(ErrorKind::usage, {}, "loader", "batch_size is {}, must be at least 1", options.batch_size);
}

void LoaderBase::shard(const Share& share, const Place& place) {
  const Share before = std::exchange(impl_->share, share);
  try {
    (void)impl_->plan(place);  // checks it
  } catch (const Error&) {
    impl_->share = before;
    throw;
  }
}

int64_t LoaderBase::size() const { return impl_->plan().size(); }
int64_t LoaderBase::sample_count() const { return impl_->samples; }
int64_t LoaderBase::batch_size() const { return impl_->plan().batch_size(); }
int64_t LoaderBase::total_batch_size() const { return batch_size() * impl_->share.world_size; }
const Share& LoaderBase::share() const { return impl_->share; }
const LoaderOptions& LoaderBase::options() const { return impl_->options; }
int64_t LoaderBase::epoch() const { return impl_->epoch; }
uint64_t LoaderBase::seed() const { return impl_->seed(); }
void LoaderBase::set_seed(uint64_t seed) { impl_->options.seed = seed; }
bool LoaderBase::shuffles() const { return impl_->options.shuffle; }

void LoaderBase::set_epoch(int64_t epoch) {
  if (epoch < 0) base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, must be at least 0", epoch);
  impl_->epoch = epoch;
  impl_->begun = false;
}

}  // namespace accelerate::data

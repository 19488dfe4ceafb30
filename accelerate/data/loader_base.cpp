// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/loader_base.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <utility>

#include "accelerate/data/epoch_batches.hpp"
#include "accelerate/data/shard.hpp"

namespace accelerate::data {

namespace {

void check_numbers(const at::Tensor& order, int64_t samples, int64_t epoch, std::string_view whose) {
  const auto* const numbers = order.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < order.numel(); ++i) {
    if (numbers[i] >= 0 && numbers[i] < samples) continue;
    base::fail(ErrorKind::usage, {}, "loader", "the {} asks for sample {} in epoch {}, there are {} samples", whose,
               numbers[i], epoch, samples);
  }
}

void check_options(const LoaderOptions& options) {
  const auto refuse = [](std::string_view one, std::string_view other) {
    base::fail(ErrorKind::usage, {}, "loader",
               "{} and {} are both given, and each says which samples come when; leave "
               "one out",
               one, other);
  };
  if (options.batch_size < 1)
    base::fail(ErrorKind::usage, {}, "loader", "batch_size is {}, must be at least 1", options.batch_size);
  if (options.shuffle && options.sampler) refuse("shuffle", "a sampler");
  if (!options.batch_sampler) return;
  if (options.batch_size != 1) refuse("batch_size", "a batch_sampler");
  if (options.shuffle) refuse("shuffle", "a batch_sampler");
  if (options.sampler) refuse("a sampler", "a batch_sampler");
  if (options.drop_last) refuse("drop_last", "a batch_sampler");
}

}  // namespace

struct LoaderBase::Impl {
  int64_t samples;
  LoaderOptions options;
  SamplerPtr sampler;  // null: a batch sampler makes the batches
  Share share{};
  int64_t epoch = 0;
  bool begun = false;  // a pass of `epoch` began

  [[nodiscard]] ShardOptions shard_options() const { return shard_options(share); }
  [[nodiscard]] ShardOptions shard_options(const Share& whose) const {
    return {.rank = whose.rank,
            .world_size = whose.world_size,
            .batch_size = options.batch_size,
            .split_batches = whose.split_batches,
            .drop_last = options.drop_last,
            .even_batches = whose.even_batches && whose.world_size > 1};
  }

  /// Throws as ShardPlan does.
  void take(const Share& asked, const Place& place) {
    ShardOptions checked = shard_options(asked);
    if (!sampler) checked.split_batches = false;  // its batches tell, once they are made
    (void)ShardPlan(0, checked, place);
    share = asked;
  }

  [[nodiscard]] bool shuffles() const { return sampler ? sampler->seeded() : true; }

  uint64_t seed() {
    if (!options.seed) options.seed = at::detail::getDefaultCPUGenerator().current_seed();
    return *options.seed;
  }

  EpochBatches batches() {
    const uint64_t from = shuffles() ? seed() : 0;
    if (!sampler) {
      EpochBatches made(options.batch_sampler(from, epoch), shard_options());
      check_numbers(made.order(), samples, epoch, "batch sampler");
      return made;
    }
    auto order = sampler->order(from, epoch);
    if (!order.defined() || order.dim() != 1 || order.size(0) != sampler->size() || order.scalar_type() != at::kLong ||
        !order.is_cpu()) {
      base::fail(ErrorKind::usage, {}, "loader", "the sampler gives {} in epoch {}, must be [{}] int64 on the CPU",
                 order.defined() ? order.toString() + c10::str(order.sizes()) : "no tensor", epoch, sampler->size());
    }
    order = order.contiguous();
    if (options.sampler) check_numbers(order, samples, epoch, "sampler");
    return {std::move(order), shard_options()};
  }

  [[nodiscard]] int64_t size() {
    return sampler ? ShardPlan(sampler->size(), shard_options()).size() : batches().size();
  }
  [[nodiscard]] int64_t batch_size() {
    return sampler ? ShardPlan(0, shard_options()).batch_size() : batches().batch_size();
  }

  EpochBatches begin_epoch() {
    if (std::exchange(begun, false)) ++epoch;
    auto made = batches();  // a pass that cannot begin is none
    begun = true;
    return made;
  }

  void end_epoch(int64_t ended) {
    if (epoch != ended || !begun) return;  // set_epoch was called, or another pass began
    ++epoch;
    begun = false;
  }
};

struct LoaderBase::Pass::Steps {
  std::shared_ptr<Impl> loader;
  EpochBatches batches;
  int64_t epoch;
  state::BatchInfo info;
};

LoaderBase::Pass::Pass(std::shared_ptr<Impl> loader) {
  auto batches = loader->begin_epoch();
  const int64_t remainder = batches.remainder();
  steps_ = std::make_unique<Steps>(Steps{loader, std::move(batches), loader->epoch, {.remainder = remainder}});
}

LoaderBase::Pass::~Pass() = default;

bool LoaderBase::Pass::ended() const { return steps_->info.index >= steps_->batches.size(); }

const state::BatchInfo& LoaderBase::Pass::info() const { return steps_->info; }

at::Tensor LoaderBase::Pass::advance() {
  if (ended()) return {};
  auto& info = steps_->info;
  ++info.index;
  info.last = info.index == steps_->batches.size() - 1;
  if (!ended()) return steps_->batches.batch(info.index);
  steps_->loader->end_epoch(steps_->epoch);
  return {};
}

LoaderBase::LoaderBase(int64_t samples, const LoaderOptions& options) {
  check_options(options);
  SamplerPtr sampler = options.sampler;
  if (!sampler && !options.batch_sampler) {
    sampler = options.shuffle ? random_sampler(samples) : sequential_sampler(samples);
  }
  impl_ = std::make_shared<Impl>(Impl{.samples = samples, .options = options, .sampler = std::move(sampler)});
}

void LoaderBase::shard(const Share& share, const Place& place) { impl_->take(share, place); }

int64_t LoaderBase::size() const { return impl_->size(); }
int64_t LoaderBase::sample_count() const { return impl_->samples; }
int64_t LoaderBase::batch_size() const { return impl_->batch_size(); }
int64_t LoaderBase::total_batch_size() const { return batch_size() * impl_->share.world_size; }
const Share& LoaderBase::share() const { return impl_->share; }
const LoaderOptions& LoaderBase::options() const { return impl_->options; }
int64_t LoaderBase::epoch() const { return impl_->epoch; }
uint64_t LoaderBase::seed() const { return impl_->seed(); }
void LoaderBase::set_seed(uint64_t seed) { impl_->options.seed = seed; }
bool LoaderBase::shuffles() const { return impl_->shuffles(); }

void LoaderBase::set_epoch(int64_t epoch) {
  if (epoch < 0) base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, must be at least 0", epoch);
  impl_->epoch = epoch;
  impl_->begun = false;
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/loader.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "accelerate/data/order.hpp"
#include "accelerate/data/shard.hpp"

namespace accelerate::data {

struct Loader::Impl {
  std::shared_ptr<const Source> source;
  LoaderOptions options;
  int64_t rank = 0;
  int64_t world_size = 1;
  bool even_batches = true;
  int64_t epoch = 0;
  bool begun = false;                             // a pass of `epoch` began
  std::vector<const state::BatchInfo*> passes{};  // under way, the innermost last

  [[nodiscard]] ShardPlan plan(const Place& place = {}) const {
    return {source->size(),
            {.rank = rank,
             .world_size = world_size,
             .batch_size = options.batch_size,
             .drop_last = options.drop_last,
             .even_batches = even_batches && world_size > 1},
            place};
  }

  // Of one rank nothing is filled, but its short batch has a remainder all the same.
  [[nodiscard]] int64_t remainder() const {
    if (world_size == 1 && !options.drop_last) return source->size() % options.batch_size;
    return plan().remainder();
  }

  uint64_t seed() {
    if (!options.seed) options.seed = at::detail::getDefaultCPUGenerator().current_seed();
    return *options.seed;
  }
};

struct Loader::Iterator::Pass {
  std::shared_ptr<Impl> loader;
  ShardPlan plan;
  at::Tensor order;
  int64_t epoch;
  state::BatchInfo info;
  Batch batch{};

  Pass(std::shared_ptr<Impl> from, at::Tensor order_)
      : loader(std::move(from)),
        plan(loader->plan()),
        order(std::move(order_)),
        epoch(loader->epoch),
        info{.remainder = loader->remainder()} {
    loader->passes.push_back(&info);
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  ~Pass() { std::erase(loader->passes, &info); }  // left early

  [[nodiscard]] bool ended() const { return info.index >= plan.size(); }

  [[nodiscard]] at::Tensor indices() const {
    const BatchRange range = plan.batch(info.index);
    if (range.filling == 0) return order.narrow(0, range.first, range.real);
    auto filled = at::empty({range.real + range.filling}, order.options());
    const int64_t* from = order.const_data_ptr<int64_t>();
    int64_t* to = std::copy_n(from + range.first, range.real, filled.data_ptr<int64_t>());
    for (int64_t i = 0; i < range.filling; ++i) *to++ = from[(range.fill_first + i) % range.pool];
    return filled;
  }

  void advance() {
    if (ended()) return;
    batch = {};
    ++info.index;
    info.last = info.index == plan.size() - 1;
    if (ended()) return close();
    batch = loader->source->read(indices());
  }

  void close() {
    std::erase(loader->passes, &info);
    if (loader->epoch != epoch || !loader->begun) return;  // set_epoch was called, or another pass began
    ++loader->epoch;
    loader->begun = false;
  }
};

Loader::Loader(std::shared_ptr<const Source> source, const LoaderOptions& options)
    : impl_(std::make_shared<Impl>(Impl{.source = std::move(source), .options = options})) {
  if (options.batch_size < 1)
    base::fail(ErrorKind::usage, {}, "loader", "batch_size is {}, must be at least 1", options.batch_size);
}

Loader::Iterator Loader::begin() {
  if (impl_->begun) ++impl_->epoch;
  impl_->begun = true;
  const uint64_t seed = impl_->options.shuffle ? impl_->seed() : 0;
  auto order = epoch_order(impl_->source->size(), impl_->options.shuffle, seed, impl_->epoch);
  auto pass = std::make_shared<Iterator::Pass>(impl_, std::move(order));
  pass->advance();  // not in the constructor: a source that throws would leave the pass registered
  return Iterator(std::move(pass));
}

void Loader::shard(int64_t rank, int64_t world_size, bool even_batches, const Place& place) {
  (void)ShardPlan(0, {.rank = rank, .world_size = world_size, .batch_size = batch_size()}, place);  // checks them
  impl_->rank = rank;
  impl_->world_size = world_size;
  impl_->even_batches = even_batches;
}

int64_t Loader::size() const { return impl_->plan().size(); }
int64_t Loader::sample_count() const { return impl_->source->size(); }
int64_t Loader::batch_size() const { return impl_->options.batch_size; }
int64_t Loader::total_batch_size() const { return batch_size() * impl_->world_size; }
int64_t Loader::rank() const { return impl_->rank; }
int64_t Loader::world_size() const { return impl_->world_size; }
bool Loader::even_batches() const { return impl_->even_batches; }
const LoaderOptions& Loader::options() const { return impl_->options; }
int64_t Loader::epoch() const { return impl_->epoch; }
uint64_t Loader::seed() const { return impl_->seed(); }
void Loader::set_seed(uint64_t seed) { impl_->options.seed = seed; }
state::BatchInfo Loader::info() const { return impl_->passes.empty() ? state::BatchInfo{} : *impl_->passes.back(); }

void Loader::set_epoch(int64_t epoch) {
  if (epoch < 0) base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, must be at least 0", epoch);
  impl_->epoch = epoch;
  impl_->begun = false;
}

Batch& Loader::Iterator::operator*() const { return pass_->batch; }

Loader::Iterator& Loader::Iterator::operator++() {
  pass_->advance();
  return *this;
}

bool Loader::Iterator::operator==(std::default_sentinel_t) const { return pass_->ended(); }

const state::BatchInfo& Loader::Iterator::info() const { return pass_->info; }

}  // namespace accelerate::data

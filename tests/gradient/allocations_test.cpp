// SPDX-License-Identifier: Apache-2.0
// Heap budget of the reducer: at most 12 allocations per step, and 8 per bucket, more than the same loop without it.
// A sharded step has no budget, but its number of allocations must not grow.
#include "support.hpp"
//
#include <cstdlib>
#include <new>

#include "accelerate/accelerate.hpp"
#include "tests/sharding/models.hpp"

using namespace gradient_testing;
using accelerate::comm::run_threads;

namespace {
thread_local int64_t allocations = 0;  // per thread: ranks are threads, and their communication threads do not count
}

// Counts every operator new of the test program, including LibTorch's; tensor memory is allocated elsewhere.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

// Allocations per step, the median of several.
template <typename Step>
int64_t per_step(const Step& step) {
  for (int i = 0; i < 5; ++i) step();
  std::vector<int64_t> counts;
  for (int i = 0; i < 9; ++i) {
    const int64_t before = allocations;
    step();
    counts.push_back(allocations - before);
  }
  std::sort(counts.begin(), counts.end());
  return counts[4];
}

}  // namespace

TEST_CASE("a step with a gradient reducer allocates at most 12 + 8 per bucket times more than the plain loop") {
  struct Row {
    std::string what;
    GradientReducerOptions options;
  };
  for (const Row& row : {Row{"one bucket", {}}, Row{"several", small_buckets()}}) {
    run_threads(2, [&](const Group& group) {
      const at::Tensor x = batch(group.rank());
      auto raw = built(make_net);
      const int64_t bare = per_step([&] {
        for (const auto& parameter : raw->parameters()) parameter.mutable_grad().reset();
        raw->with_extra(x).sum().backward();
      });
      auto net = built(make_net);
      GradientReducer gradient_reducer(group, named(net), row.options);
      const int64_t with_engine = per_step([&] {
        for (const auto& parameter : net->parameters())
          (void)parameter.mutable_grad();  // the plain loop also allocates its list
        gradient_reducer.zero_all();
        net->with_extra(x).sum().backward();
        gradient_reducer.before_step();
      });
      const auto buckets = static_cast<int64_t>(gradient_reducer.plan().buckets.size());
      CAPTURE(row.what);
      CAPTURE(buckets);
      CHECK(with_engine - bare <= 12 + 8 * buckets);
    });
  }
}

TEST_CASE("the number of allocations of a sharded step does not grow") {
  using accelerate::Accelerator;
  using enum accelerate::ShardingStrategy;
  for (const auto strategy : {shard_optim_op, shard_grad_op, full_shard}) {
    CAPTURE(strategy_name(strategy));
    accelerate::simulate(2, [&] {
      Accelerator accelerator({.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 30}});
      const auto net = sharding_testing::mlp();
      torch::optim::AdamW adamw(net->parameters(), 1e-2);
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      const at::Tensor x = sharding_testing::waves({6, 7}, 0.1);
      const auto step = [&, &of = model, &with = optimizer] {
        with.zero_grad();
        accelerator.backward(sharding_testing::loss_of(of(x)));
        with.step();
      };
      const int64_t early = per_step(step);
      for (int i = 0; i < 100; ++i) step();
      const int64_t late = per_step(step);
      // The number of a rank varies by some, because any rank may complete a collective.
      CHECK(late < early + 50);
    });
  }
}

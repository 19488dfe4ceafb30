// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"
#include "accelerate/sharding/unit_buffers.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/sharding/models.hpp"

using accelerate::Accelerator;
using accelerate::ShardingStrategy;
using accelerate::sharding::UnitBuffers;
using sharding_testing::AnyNet;

namespace {

constexpr int64_t kNumel = UnitBuffers::kMinBytes / 4;  // float32

at::Tensor buffer_of(UnitBuffers& buffers, int64_t numel = kNumel) { return buffers.take(numel, at::kFloat); }

bool is_mapped(const void* address) {
  unsigned char resident = 0;
  return mincore(const_cast<void*>(address), 1, &resident) == 0;
}

/// Number of pages of [begin, begin + bytes) in memory.
int64_t resident_pages(const void* begin, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident(bytes / page);
  REQUIRE(mincore(const_cast<void*>(begin), bytes, resident.data()) == 0);
  return std::ranges::count_if(resident, [](unsigned char each) { return (each & 1) != 0; });
}

}  // namespace

TEST_CASE("units of different sizes use the same buffer in turn, and unused buffers return to the system") {
  UnitBuffers buffers(2 * UnitBuffers::kMinBytes);
  at::Tensor first = buffer_of(buffers);
  const void* const memory = first.const_data_ptr();
  first.fill_(1);
  first.reset();
  at::Tensor second = buffer_of(buffers, 2 * kNumel);
  CHECK(second.const_data_ptr() == memory);
  CHECK(second.sizes() == at::IntArrayRef({2 * kNumel}));
  second.fill_(2);
  at::Tensor third = buffers.take(kNumel, at::kDouble);
  CHECK(third.const_data_ptr() != memory);
  CHECK(third.dtype() == at::kDouble);
  CHECK(buffers.counts().mapped == 2);
  CHECK(buffers.counts().reuses == 1);
  second.reset();
  buffers.unmap_unused();
  CHECK_FALSE(is_mapped(memory));
  CHECK(buffers.counts().mapped == 1);
  CHECK(buffers.counts().used == 1);
  CHECK(third.fill_(3).sum().item<double>() == 3 * kNumel);
}

TEST_CASE("a small unit does not keep the pages of a large one, and units of about the same size keep theirs") {
  const size_t huge_page = size_t{2} << 20;
  UnitBuffers buffers(16 * UnitBuffers::kMinBytes);
  at::Tensor large = buffer_of(buffers, 16 * kNumel).fill_(1);
  const auto* const memory = static_cast<const std::byte*>(large.const_data_ptr());
  large.reset();
  at::Tensor similar = buffer_of(buffers, 12 * kNumel).fill_(2);
  CHECK(similar.const_data_ptr() == memory);
  CHECK(resident_pages(memory + 6 * huge_page, 2 * huge_page) > 0);
  similar.reset();
  at::Tensor small = buffer_of(buffers).fill_(3);
  CHECK(small.const_data_ptr() == memory);
  CHECK(resident_pages(memory, UnitBuffers::kMinBytes) > 0);
  CHECK(resident_pages(memory + huge_page, 7 * huge_page) == 0);
  CHECK(small.eq(3).all().item<bool>());
  small.reset();
  large = buffer_of(buffers, 16 * kNumel).fill_(4);
  CHECK(large.const_data_ptr() == memory);
  CHECK(large.eq(4).all().item<bool>());
  CHECK(buffers.counts().mapped == 1);
}

TEST_CASE("a buffer that a saved tensor holds is not reused") {
  UnitBuffers buffers(UnitBuffers::kMinBytes);
  const auto x = torch::full({kNumel}, 2.0F).requires_grad_(true);
  at::Tensor weight = buffer_of(buffers).fill_(3);
  const void* const memory = weight.const_data_ptr();
  at::Tensor loss = (x * weight).sum();
  weight.reset();
  at::Tensor other = buffer_of(buffers).fill_(7);
  CHECK(other.const_data_ptr() != memory);
  CHECK(buffers.counts().used == 2);
  buffers.unmap_unused();
  loss.backward();
  CHECK(x.grad().eq(3).all().item<bool>());
  loss.reset();
  CHECK(buffers.counts().used == 1);
  CHECK(buffer_of(buffers).const_data_ptr() == memory);
}

TEST_CASE("buffers above the number that is kept are unmapped when they are unused") {
  UnitBuffers buffers(UnitBuffers::kMinBytes);
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < UnitBuffers::kKept + 2; ++i) all.push_back(buffer_of(buffers).fill_(static_cast<double>(i)));
  for (int64_t i = 0; i < std::ssize(all); ++i) {
    CHECK(all[static_cast<size_t>(i)].eq(static_cast<double>(i)).all().item<bool>());
  }
  all.clear();
  CHECK(buffers.counts().mapped == UnitBuffers::kKept);
  CHECK(buffers.counts().most_used == UnitBuffers::kKept + 2);
}

TEST_CASE("a tensor may outlive its pool") {
  at::Tensor kept;
  {
    UnitBuffers buffers(UnitBuffers::kMinBytes);
    kept = buffer_of(buffers);
  }
  const void* const memory = kept.const_data_ptr();
  CHECK(kept.fill_(1).sum().item<double>() == kNumel);
  kept.reset();
  CHECK_FALSE(is_mapped(memory));
}

TEST_CASE("small units, units above the capacity and those without address space have memory of LibTorch") {
  UnitBuffers buffers(UnitBuffers::kMinBytes), endless(int64_t{1} << 60);
  const sharding_testing::CountedMemory counted;
  const auto check = [&](UnitBuffers& of, int64_t numel) {
    const int64_t before = counted.counts.held;
    const at::Tensor tensor = buffer_of(of, numel);
    CHECK(counted.counts.held - before >= numel * 4);
    CHECK(of.counts().mapped == 0);
  };
  check(buffers, kNumel - 1);
  check(buffers, 2 * kNumel + 1);  // the capacity is a multiple of 2 MiB
  check(endless, kNumel);
}

namespace {

constexpr int64_t kWidth = 384, kLayers = 6;  // units of 1.1 MiB

std::shared_ptr<AnyNet> large_net() {
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  auto net = std::make_shared<AnyNet>([layers](const torch::Tensor& x) mutable { return layers->forward(x); });
  net->register_module("layers", layers);
  net->to(torch::kDouble);
  sharding_testing::fill(*net);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.mul_(0.1);
  return net;
}

/// Trains a model with large units on two ranks, and the same model in one process.
struct LargeTraining {
  explicit LargeTraining(Accelerator& the_accelerator) : accelerator(the_accelerator) {
    std::tie(model, optimizer) = accelerator.prepare(net, own);
  }

  void step(const std::function<void()>& between = [] {}) {
    optimizer.zero_grad();
    stock.zero_grad();
    const auto loss = [&](auto& of) { return of.forward(x).square().mean(); };
    const torch::Tensor own_loss = loss(model);
    used_after_forward = counts().used;
    accelerator.backward(own_loss);
    loss(*reference).backward();
    between();
    optimizer.step();
    stock.step();
  }
  [[nodiscard]] UnitBuffers::Counts counts() const { return model.core().fully_sharded()->buffer_counts(); }
  void check() const {
    const auto whole = Accelerator::summon_full_params(model);
    CHECK(sharding_testing::largest_difference(net->parameters(), reference->parameters()) < 1e-12);
  }

  Accelerator& accelerator;
  std::shared_ptr<AnyNet> net = large_net(), reference = large_net();
  torch::optim::SGD own{net->parameters(), 0.1}, stock{reference->parameters(), 0.1};
  accelerate::PreparedModel<AnyNet> model{};
  accelerate::PreparedOptimizer<torch::optim::SGD> optimizer{};
  torch::Tensor x = sharding_testing::waves({4, kWidth}, 0.3);
  int64_t used_after_forward = 0;
};

void train_large(accelerate::FullyShardedDataParallelPlugin plugin, const std::function<void(LargeTraining&)>& check) {
  plugin.min_num_params = kWidth * kWidth;
  accelerate::simulate(2, [&] {
    Accelerator accelerator({.cpu = true, .fsdp_plugin = plugin});
    LargeTraining training(accelerator);
    check(training);
  });
}

}  // namespace

TEST_CASE("all units of a step use four buffers, and none is kept between steps") {
  train_large({.sharding_strategy = ShardingStrategy::full_shard}, [](LargeTraining& training) {
    CHECK(training.counts().mapped == 0);
    for (int64_t i = 1; i <= 3; ++i) {
      const int64_t reuses = training.counts().reuses;
      training.step();
      CHECK(training.counts().mapped == 0);
      CHECK(training.counts().used == 0);
      // Each unit has a gradient, and is gathered in forward and in backward. In backward the last one is still whole,
      // and the first one is not used. The first step does not prefetch.
      const int64_t most = i == 1 ? 3 : UnitBuffers::kKept;
      CHECK(training.counts().reuses - reuses == 3 * kLayers - 2 - most);
      CHECK(training.counts().most_used == most);
    }
    training.check();
    CHECK(training.counts().mapped == 0);
  });
}

// Two buffers of a backward have gradients. The others have whole parameters: of the unit in use, and of the next one
// if its gather starts ahead. The last unit of a forward is whole at its end, with the first one that the backward
// gathers.
TEST_CASE("forward_prefetch and backward_prefetch select the gathers that start ahead") {
  using accelerate::BackwardPrefetch;
  struct Case {
    std::optional<bool> forward;
    std::optional<BackwardPrefetch> backward;
    bool in_forward, in_backward;
  };
  for (const Case& each : {Case{{}, {}, true, true}, Case{{}, BackwardPrefetch::no_prefetch, true, false},
                           Case{{}, BackwardPrefetch::backward_post, true, true}, Case{false, {}, false, false},
                           Case{false, BackwardPrefetch::backward_pre, false, true}}) {
    train_large({.sharding_strategy = ShardingStrategy::full_shard,
                 .forward_prefetch = each.forward,
                 .backward_prefetch = each.backward},
                [&](LargeTraining& training) {
                  for (int64_t i = 0; i < 4; ++i) {
                    const bool is_first = i == 0;  // nothing is known yet
                    training.step();
                    CHECK(training.used_after_forward == (each.in_backward && !is_first ? 2 : 1));
                    CHECK(training.counts().most_used == (each.in_backward && !is_first ? 4 : 3));
                  }
                  training.check();
                });
  }
}

TEST_CASE("whole gradients of shard_grad_op use two buffers") {
  train_large({.sharding_strategy = ShardingStrategy::shard_grad_op}, [](LargeTraining& training) {
    for (int64_t i = 0; i < 2; ++i) training.step([&] { CHECK(training.counts().mapped == 0); });
    CHECK(training.counts().reuses == 2 * (kLayers - 2));
    CHECK(training.counts().most_used == 2);
    training.check();
  });
}

TEST_CASE("a forward or a backward that throws gives its buffers back") {
  train_large({.sharding_strategy = ShardingStrategy::full_shard}, [](LargeTraining& training) {
    training.step();
    const auto inner = training.net->run;
    training.net->run = [&](const torch::Tensor& x) -> torch::Tensor {
      (void)inner(x);
      throw std::runtime_error("in forward");
    };
    CHECK_THROWS_AS((void)training.model(training.x), std::runtime_error);
    training.net->run = inner;
    training.step([&] { CHECK(training.counts().used == 0); });
    auto hidden = training.x;
    training.net->run = [&](const torch::Tensor& x) {
      hidden = inner(x);
      auto output = inner(hidden);
      hidden.register_hook([](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("in backward"); });
      return output;
    };
    CHECK_THROWS_AS(training.accelerator.backward(training.model(training.x).sum()), std::runtime_error);
    training.net->run = inner;
    hidden.reset();
    for (int64_t i = 0; i < 2; ++i) training.step();
    CHECK(training.counts().mapped == 0);
    training.check();
  });
}

TEST_CASE("free_memory() leaves no buffer") {
  train_large({.sharding_strategy = ShardingStrategy::full_shard}, [](LargeTraining& training) {
    training.step();
    const auto parameters = training.net->parameters();
    training.accelerator.free_memory();
    for (const auto& parameter : parameters) CHECK(parameter.isfinite().all().item<bool>());
  });
}

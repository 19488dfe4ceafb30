// SPDX-License-Identifier: Apache-2.0
// Modules of init_empty_weights() on ranks that are threads.
#include "tests/testing.hpp"
//
#include <memory>
#include <tuple>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/deferred/deferred_tensor.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/sharding/models.hpp"

namespace {

using accelerate::Accelerator;
using accelerate::ShardingStrategy;
using sharding_testing::AnyNet;

std::shared_ptr<AnyNet> normalized_net() {
  torch::nn::Sequential layers(torch::nn::Linear(7, 11), torch::nn::BatchNorm1d(11), torch::nn::Tanh(),
                               torch::nn::Linear(11, 3));
  auto net = std::make_shared<AnyNet>([layers](torch::Tensor x) mutable { return layers->forward(x); });
  net->register_module("layers", layers);
  net->parameters()[1].requires_grad_(false);
  return net;
}

/// Trains a net for five steps on each rank. Returns the parameters of rank 0.
std::vector<torch::Tensor> train(int64_t ranks, ShardingStrategy strategy, bool deferred, bool optimizer_first) {
  std::vector<torch::Tensor> result;
  // Built before the ranks start, because they share the generator.
  torch::manual_seed(9);
  std::vector<std::shared_ptr<AnyNet>> nets;
  for (int64_t i = 0; i < ranks; ++i) {
    nets.push_back(deferred ? accelerate::init_empty_weights(normalized_net) : normalized_net());
  }
  accelerate::simulate(ranks, [&] {
    Accelerator accelerator({.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 20}});
    const auto net = nets[static_cast<size_t>(accelerator.process_index())];
    torch::optim::AdamW adamw(net->parameters(), 1e-2);
    auto prepare = [&] {
      if (!optimizer_first) return accelerator.prepare(net, adamw);
      auto [optimizer, model] = accelerator.prepare(adamw, net);
      return std::tuple(model, optimizer);
    };
    auto [model, optimizer] = prepare();
    for (const auto& parameter : net->parameters()) CHECK_FALSE(accelerate::deferred::is_deferred(parameter));
    for (int64_t step = 0; step < 5; ++step) {
      const auto x = sharding_testing::waves({6, 7}, static_cast<double>(step + accelerator.process_index()));
      optimizer.zero_grad();
      accelerator.backward(model(x.to(torch::kFloat)).square().mean());
      optimizer.step();
    }
    const auto whole = Accelerator::summon_full_params(model);
    if (accelerator.process_index() > 0) return;
    for (const auto& parameter : net->parameters()) result.push_back(parameter.detach().clone());
    for (const auto& buffer : net->buffers()) result.push_back(buffer.detach().clone());
  });
  return result;
}

}  // namespace

TEST_CASE("five AdamW steps have the bits of an ordinary build, with every strategy") {
  for (const int64_t ranks : {1, 2, 4}) {
    for (const auto strategy : {ShardingStrategy::no_shard, ShardingStrategy::shard_optim_op,
                                ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard}) {
      CAPTURE(ranks);
      CAPTURE(accelerate::sharding::name_of(strategy));
      const auto expected = train(ranks, strategy, /*deferred=*/false, /*optimizer_first=*/false);
      for (const bool optimizer_first : {false, true}) {
        const auto own = train(ranks, strategy, /*deferred=*/true, optimizer_first);
        REQUIRE(own.size() == expected.size());
        for (size_t i = 0; i < own.size(); ++i) CHECK(own[i].equal(expected[i]));
      }
    }
  }
}

TEST_CASE("with full_shard, preparing holds the parts and about two units") {
  const sharding_testing::CountedMemory counted;
  auto& memory = counted.counts;
  constexpr int64_t kWidth = 128, kLayers = 16, kRanks = 2;
  constexpr int64_t kUnit = kWidth * kWidth * 4;
  accelerate::simulate(kRanks, [&] {
    Accelerator accelerator(
        {.cpu = true, .sharding = ShardingStrategy::full_shard, .fsdp_plugin = {.min_num_params = 1000}});
    const int64_t before = memory.held;
    accelerator.wait_for_everyone();
    if (accelerator.process_index() == 0) memory.peak = memory.held;
    accelerator.wait_for_everyone();
    auto net = accelerate::init_empty_weights([] {
      torch::nn::Sequential layers;
      for (int64_t i = 0; i < kLayers; ++i) {
        layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
      }
      return layers;
    });
    const auto model = accelerator.prepare(net);
    accelerator.wait_for_everyone();
    if (accelerator.process_index() == 0) {
      CHECK(memory.held - before >= kLayers * kUnit);
      // The parts of both ranks, two units of each, and five units for generator states and small tensors.
      CHECK(memory.peak - before < kLayers * kUnit + kRanks * 2 * kUnit + 5 * kUnit);
    }
    accelerator.wait_for_everyone();
  });
}

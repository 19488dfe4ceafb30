// SPDX-License-Identifier: Apache-2.0
// Compiled modules on ranks that are processes: each loads the package for itself.
#include "tests/nn/compiled_training.hpp"
#include "tests/world.hpp"

using namespace compiled_testing;
using accelerate::ShardingStrategy;

namespace {

constexpr std::array kSharded{ShardingStrategy::shard_optim_op, ShardingStrategy::shard_grad_op,
                              ShardingStrategy::full_shard};

/// Values after training three modules of one package, each with its own parameters.
Values train_blocks(ShardingStrategy strategy) {
  accelerate::Accelerator accelerator(testing::world(),
                                      {.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 1}});
  const CompiledPackage block(package("block"), kTrusted);
  torch::nn::Sequential net;
  for (int64_t i = 0; i < 3; ++i) {
    net->push_back(block.module());
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->children().back()->parameters()) parameter.mul_(static_cast<double>(i) + 1);
  }
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int64_t step = 0; step < kTrainingSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = torch::arange(20, torch::kFloat).add(10 * step + accelerator.process_index()).reshape({5, 4});
    accelerator.backward(model(x.sin()).square().mean());
    optimizer.step();
  }
  const auto whole = accelerator.summon_full_params(model);
  return values_of(*net);
}

}  // namespace

TEST_CASE("ranks train a compiled module like one rank that accumulates all parts of the batch") {
  accelerate::Accelerator accelerator(testing::world(), {.cpu = true});
  const Values values = train_on_ranks(accelerator, compiled_mlp());
  CHECK(largest_difference(values, train_by_hand(accelerator.num_processes())) < 1e-12);
  CHECK(largest_difference(values, values_of(*compiled_mlp())) > 1e-2);
}

TEST_CASE("ranks with sharded parameters, gradients or optimizer state train a compiled module like one rank") {
  for (const ShardingStrategy strategy : kSharded) {
    for (const int64_t min_num_params : {1, 100'000}) {  // several units, and one
      CAPTURE(static_cast<int>(strategy));
      CAPTURE(min_num_params);
      accelerate::Accelerator accelerator(
          testing::world(), {.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = min_num_params}});
      CHECK(largest_difference(train_on_ranks(accelerator, compiled_mlp()),
                               train_by_hand(accelerator.num_processes())) < 1e-12);
    }
  }
}

TEST_CASE("compiled blocks are units of a sharded model") {
  const Values values = train_blocks(ShardingStrategy::no_shard);
  for (const ShardingStrategy strategy : kSharded) {
    CAPTURE(static_cast<int>(strategy));
    CHECK(largest_difference(train_blocks(strategy), values) < 1e-5);
  }
}

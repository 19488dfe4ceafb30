// SPDX-License-Identifier: Apache-2.0
// start_test.py runs it on several hosts with every runner.
#include "tests/testing.hpp"
//
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "accelerate/accelerate.hpp"
#include "tests/refusal.hpp"
#include "tests/world.hpp"

namespace {

torch::nn::Sequential make_net() {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(20, 30), torch::nn::Tanh(), torch::nn::Linear(30, 5));
  net->to(torch::kDouble);
  return net;
}

/// Returns the sharding plan.
std::string train_as_one_process(const accelerate::AcceleratorOptions& options) {
  constexpr int64_t kShare = 4;
  accelerate::Accelerator accelerator(testing::world(), options);
  auto net = make_net();
  auto alone = make_net();
  torch::optim::AdamW adamw(net->parameters(), 0.01);
  torch::optim::AdamW adamw_alone(alone->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  torch::manual_seed(4);
  for (int64_t step = 0; step < 5; ++step) {
    const auto batch = torch::randn({kShare * accelerator.num_processes(), 20}, torch::kDouble);
    optimizer.zero_grad();
    accelerator.backward(model(batch.narrow(0, kShare * accelerator.process_index(), kShare)).pow(2).mean());
    optimizer.step();
    adamw_alone.zero_grad();
    alone->forward(batch).pow(2).mean().backward();
    adamw_alone.step();
  }
  accelerator.check_synchronized(model);
  const auto whole = accelerate::Accelerator::summon_full_params(model);
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    CHECK((net->parameters()[i] - alone->parameters()[i]).abs().max().item<double>() <= 1e-12);
  }
  return accelerate::Accelerator::sharding_plan(model);
}

}  // namespace

TEST_CASE("5 AdamW steps in float64 on all ranks equal those of one process with the whole batch, within 1e-12") {
  CHECK(train_as_one_process({.cpu = true}) == "not sharded");
}

TEST_CASE("the same with hybrid_shard, which divides over the ranks of each host and needs equally many on all") {
  const accelerate::AcceleratorOptions options{
      .cpu = true, .sharding = accelerate::ShardingStrategy::hybrid_shard, .fsdp_plugin = {.min_num_params = 100}};
  const auto process = testing::process_env();
  // Slurm may start three of four tasks on one host.
  const auto ranks_of_host = testing::world().all_gather_bytes(fmt::to_string(process.local_world_size));
  if (std::ranges::any_of(ranks_of_host, [&](const auto& other) { return other != ranks_of_host.front(); })) {
    const std::string text = testing::refusal([&] { train_as_one_process(options); });
    CHECK_MESSAGE(text.find("start the same number of ranks on every machine") != std::string::npos, text);
    return;
  }
  const auto plan = train_as_one_process(options);
  if (process.world_size == 1) return;
  const int64_t hosts = process.world_size / process.local_world_size;
  CHECK_MESSAGE(plan.find(fmt::format(" on {} ranks, ", process.local_world_size)) != std::string::npos, plan);
  CHECK_MESSAGE((hosts == 1 || plan.find(fmt::format(", {} replicas\n", hosts)) != std::string::npos), plan);
}

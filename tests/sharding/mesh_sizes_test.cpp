// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "accelerate/sharding/mesh_sizes.hpp"
#include "tests/refusal.hpp"

using accelerate::ParallelismConfig;
using accelerate::sharding::apply_mesh_sizes;
using accelerate::sharding::ShardingSettings;
using accelerate::sharding::ShardingStrategy;
using enum accelerate::sharding::ShardingStrategy;

namespace {

ShardingSettings on(const ParallelismConfig& mesh, ShardingStrategy strategy, int64_t plugin_size = 0) {
  ShardingSettings settings{.strategy = strategy, .full_shard = {.dp_shard_size = plugin_size}};
  settings.full_shard.is_hybrid = accelerate::sharding::is_hybrid(strategy);
  apply_mesh_sizes(mesh, settings, {});
  return settings;
}

std::string refused(const ParallelismConfig& mesh, ShardingStrategy strategy, int64_t plugin_size = 0) {
  return testing::refusal([&] { on(mesh, strategy, plugin_size); });
}

}  // namespace

TEST_CASE("two data parallel dimensions are the groups of a hybrid strategy") {
  const ParallelismConfig both{.dp_replicate_size = 2, .dp_shard_size = 4};
  for (const auto& [given, expected] :
       {std::pair(full_shard, hybrid_shard), std::pair(hybrid_shard, hybrid_shard),
        std::pair(shard_grad_op, hybrid_shard_zero2), std::pair(hybrid_shard_zero2, hybrid_shard_zero2)}) {
    const auto settings = on(both, given);
    CHECK((settings.strategy == expected));
    CHECK(settings.full_shard.is_hybrid);
    CHECK(settings.full_shard.dp_shard_size == 4);
  }
  CHECK(on(both, hybrid_shard, 4).full_shard.dp_shard_size == 4);
}

TEST_CASE("one data parallel dimension leaves the strategy") {
  for (const auto strategy : {shard_optim_op, shard_grad_op, full_shard}) {
    const auto settings = on({.dp_shard_size = 4}, strategy);
    CHECK((settings.strategy == strategy));
    CHECK_FALSE(settings.full_shard.is_hybrid);
    CHECK((on({}, strategy).strategy == strategy));  // no mesh
  }
  CHECK((on({.dp_replicate_size = 4}, no_shard).strategy == no_shard));
  CHECK((on({.dp_replicate_size = 2, .tp_size = 2}, no_shard).strategy == no_shard));
  CHECK((on({.dp_shard_size = 2, .tp_size = 2}, full_shard).strategy == full_shard));
  CHECK(on({.dp_shard_size = 4}, hybrid_shard).full_shard.dp_shard_size == 4);
}

TEST_CASE("context parallel ranks divide the parameters together with the ranks of dp_shard_size") {
  for (const auto strategy : {shard_optim_op, shard_grad_op, full_shard}) {
    CHECK((on({.cp_size = 2}, strategy).strategy == strategy));
    CHECK((on({.dp_shard_size = 2, .cp_size = 2}, strategy).strategy == strategy));
  }
  CHECK((on({.dp_replicate_size = 2, .cp_size = 2}, no_shard).strategy == no_shard));
  const auto replicated = on({.dp_replicate_size = 2, .cp_size = 2}, full_shard);
  CHECK((replicated.strategy == hybrid_shard));
  CHECK(replicated.full_shard.dp_shard_size == 2);
  const auto both = on({.dp_replicate_size = 2, .dp_shard_size = 4, .cp_size = 2}, hybrid_shard, 4);
  CHECK(both.full_shard.dp_shard_size == 8);
}

TEST_CASE("sizes that contradict the strategy are refused with the remedy") {
  CHECK(refused({.dp_shard_size = 2}, no_shard) ==
        "parallelism_config: dp_shard_size is 2, and sharding is no_shard; set sharding to full_shard");
  CHECK(refused({.dp_replicate_size = 4}, full_shard) ==
        "parallelism_config: dp_shard_size is 1, and sharding is full_shard; set dp_shard_size to the number of ranks "
        "that divide the model, or use no_shard");
  CHECK(refused({.dp_replicate_size = 2, .dp_shard_size = 2}, shard_optim_op) ==
        "parallelism_config: dp_replicate_size is 2, and shard_optim_op divides over all ranks; use full_shard or "
        "shard_grad_op");
  CHECK(refused({.dp_replicate_size = 2, .dp_shard_size = 2}, hybrid_shard, 4) ==
        "parallelism_config: dp_shard_size is 2, and fsdp_plugin.dp_shard_size is 4; set one of them, or both to the "
        "same value");
}

TEST_CASE("an Accelerator divides a model over dp_shard_size ranks and replicates it over dp_replicate_size") {
  accelerate::simulate(4, [] {
    accelerate::Accelerator accelerator(
        {.cpu = true, .parallelism_config = {{.dp_replicate_size = 2, .dp_shard_size = 2}}, .sharding = full_shard});
    const auto model = accelerator.prepare(torch::nn::Linear(8, 8));
    CHECK(accelerator.sharding_plan(model).find(" elements on 2 ranks") != std::string::npos);
    CHECK(accelerator.data_parallel_rank() == accelerator.process_index() / 2);
    CHECK(accelerator.data_parallel_shard_rank() == accelerator.process_index() % 2);
    CHECK(accelerator.data_parallel_group().size() == 4);
    CHECK(accelerator.should_save_model() == (accelerator.process_index() < 2));
  });
}

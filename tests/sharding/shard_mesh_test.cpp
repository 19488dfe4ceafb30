// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <utility>

#include "accelerate/sharding/shard_mesh.hpp"
#include "tests/refusal.hpp"

using accelerate::comm::Group;
using accelerate::comm::run_threads;
using accelerate::sharding::make_mesh;
using accelerate::sharding::plan_replicas;
using accelerate::sharding::ShardMesh;
using testing::refusal;

namespace {

using Hosts = std::vector<std::string>;
using Replicas = std::vector<int64_t>;

}  // namespace

TEST_CASE("the ranks of a host are a shard group, in any order of the hosts") {
  CHECK(plan_replicas(Hosts{"a"}, 0, {}) == Replicas{0});
  CHECK(plan_replicas(Hosts{"a", "a", "b", "b"}, 0, {}) == Replicas{0, 0, 1, 1});
  CHECK(plan_replicas(Hosts{"b", "a", "a", "b"}, 0, {}) == Replicas{0, 1, 1, 0});
  CHECK(plan_replicas(Hosts{"c", "b", "a"}, 0, {}) == Replicas{0, 1, 2});
}

TEST_CASE("dp_shard_size consecutive ranks are a shard group on any host") {
  CHECK(plan_replicas(Hosts{"a", "a", "a", "b"}, 2, {}) == Replicas{0, 0, 1, 1});
  CHECK(plan_replicas(Hosts{"a", "a"}, 1, {}) == Replicas{0, 1});
  CHECK(plan_replicas(Hosts{"a", "b"}, 2, {}) == Replicas{0, 0});
}

TEST_CASE("shard groups of different sizes are refused with both numbers") {
  CHECK(refusal([] {
          (void)plan_replicas(Hosts{"a", "a", "b", "c", "c"}, 0, {});
        }) ==
        "sharding: a hybrid strategy divides the model over the ranks of each machine, a has 2 ranks and b has 1, but "
        "the parts of all machines must be the same; start the same number of ranks on every machine, set "
        "fsdp_plugin.dp_shard_size, or use full_shard");
  for (const int64_t size : {3, 8}) {
    CHECK(refusal([&] {
            (void)plan_replicas(Hosts{"a", "a", "b", "b"}, size, {});
          }) ==
          fmt::format("sharding: fsdp_plugin.dp_shard_size is {} and the job has 4 ranks; the size must divide the "
                      "number of ranks",
                      size));
  }
}

TEST_CASE("the groups connect the ranks of a replica, and the same part of all replicas") {
  run_threads(4, [](const Group& world) {
    const ShardMesh mesh = make_mesh(world, Replicas{0, 1, 1, 0});
    const bool is_outer = world.rank() == 0 || world.rank() == 3;
    CHECK(mesh.replica == (is_outer ? 0 : 1));
    CHECK(mesh.has_replicas());
    CHECK(mesh.shard.size() == 2);
    CHECK(mesh.shard.rank() == world.rank() / 2);
    CHECK(mesh.replicate.size() == 2);
    const auto own = torch::tensor({int64_t{1} << world.rank()});
    CHECK(mesh.shard.all_gather(own).sum().item<int64_t>() == (is_outer ? 9 : 6));
    CHECK(mesh.replicate.all_gather(own).sum().item<int64_t>() == (world.rank() < 2 ? 3 : 12));
  });
}

TEST_CASE("errors of the groups name dp_shard and dp_replicate") {
  run_threads(4, [](const Group& world) {
    const ShardMesh mesh = make_mesh(world, Replicas{0, 0, 1, 1});
    for (const auto& [group, name] : {std::pair(mesh.shard, "dp_shard"), std::pair(mesh.replicate, "dp_replicate")}) {
      if (group.rank() != 0) continue;
      auto pending = group.all_reduce_async(torch::ones({1}));
      const auto text = testing::refusal_of_any_rank([&] { pending.wait(std::chrono::milliseconds(100)); });
      CHECK(text ==
            fmt::format("all_reduce: waited 0.1 s in operation 1 ([1] float32) over the 2 {} ranks; rank {} did "
                        "not join.",
                        name, world.rank() + (std::string_view(name) == "dp_shard" ? 1 : 2)));
    }
    world.barrier();
  });
}

TEST_CASE("one host is one shard group, which shares the connection") {
  run_threads(3, [](const Group& world) {
    const ShardMesh mesh = make_mesh(world, {.is_hybrid = true});
    CHECK_FALSE(mesh.has_replicas());
    CHECK(mesh.shard.size() == 3);
    CHECK(mesh.replicate.size() == 1);
    CHECK_FALSE(make_mesh(world, accelerate::sharding::FullShardOptions{}).has_replicas());
    CHECK(make_mesh(world, {.is_hybrid = true, .dp_shard_size = 1}).replicas == 3);
  });
}

TEST_CASE("a rank that leaves is named when the groups are made") {
  run_threads(
      2,
      [](const Group& world) {
        if (world.rank() == 1) return;
        const auto text = refusal([&] { (void)make_mesh(world, {.is_hybrid = true}); });
        CHECK_MESSAGE(text.find("prepare: the groups of hybrid sharding are not made: ") != std::string::npos, text);
        CHECK_MESSAGE(text.find("rank 1") != std::string::npos, text);
      },
      std::chrono::seconds(5));
}

// SPDX-License-Identifier: Apache-2.0
// The expected coordinates and groups are those of the device mesh that ParallelismConfig of Hugging Face Accelerate
// 1.15 builds with PyTorch 2.11. Meshes with pp are an addition of this library.
#include "accelerate/env/parallelism_config.hpp"

#include <doctest/doctest.h>

#include <set>

#include "accelerate/env/parallelism_table.hpp"
#include "tests/env/refusal.hpp"

namespace env = accelerate::env;
namespace mesh = accelerate::env::mesh;
using accelerate::ErrorKind;
using accelerate::MeshCoordinates;
using accelerate::MeshDimension;
using accelerate::ParallelismConfig;
using testing::refusal;
using Ranks = std::vector<int64_t>;

namespace {

const ParallelismConfig kHybrid{.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2};
const ParallelismConfig kContext{.dp_shard_size = 2, .tp_size = 2, .cp_size = 2};
const ParallelismConfig kLarge{.dp_replicate_size = 2, .dp_shard_size = 3, .tp_size = 2, .cp_size = 2};

const env::Variables kUse{{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}};

}  // namespace

TEST_CASE("a rank has the coordinates of Accelerate's device mesh") {
  CHECK(kHybrid.coordinates(0) == MeshCoordinates{});
  CHECK(kHybrid.coordinates(3) == MeshCoordinates{.dp_replicate = 0, .dp_shard = 1, .tp = 1});
  CHECK(kHybrid.coordinates(4) == MeshCoordinates{.dp_replicate = 1});
  CHECK(kHybrid.coordinates(6) == MeshCoordinates{.dp_replicate = 1, .dp_shard = 1});
  CHECK(kContext.coordinates(5) == MeshCoordinates{.dp_shard = 1, .tp = 1});
  CHECK(kContext.coordinates(6) == MeshCoordinates{.dp_shard = 1, .cp = 1});
  CHECK(kLarge.coordinates(7) == MeshCoordinates{.dp_shard = 1, .cp = 1, .tp = 1});
  CHECK(kLarge.coordinates(13) == MeshCoordinates{.dp_replicate = 1, .tp = 1});
  CHECK(kLarge.coordinates(22) == MeshCoordinates{.dp_replicate = 1, .dp_shard = 2, .cp = 1});
}

TEST_CASE("a rank has the groups of Accelerate's device mesh") {
  CHECK(kHybrid.group(5, MeshDimension::dp_replicate) == Ranks{1, 5});
  CHECK(kHybrid.group(5, MeshDimension::dp_shard) == Ranks{5, 7});
  CHECK(kHybrid.group(5, MeshDimension::tp) == Ranks{4, 5});
  CHECK(kHybrid.group(5, mesh::kDp) == Ranks{1, 3, 5, 7});
  CHECK(kHybrid.group(5, mesh::kDpShardCp) == Ranks{5, 7});
  CHECK(kContext.group(3, MeshDimension::cp) == Ranks{1, 3});
  CHECK(kContext.group(3, mesh::kDp) == Ranks{3, 7});
  CHECK(kContext.group(3, mesh::kDpShardCp) == Ranks{1, 3, 5, 7});
  CHECK(kLarge.group(19, MeshDimension::dp_replicate) == Ranks{7, 19});
  CHECK(kLarge.group(19, MeshDimension::dp_shard) == Ranks{15, 19, 23});
  CHECK(kLarge.group(19, mesh::kDp) == Ranks{3, 7, 11, 15, 19, 23});
  CHECK(kLarge.group(19, mesh::kDpShardCp) == Ranks{13, 15, 17, 19, 21, 23});
  CHECK(kLarge.group(19, mesh::kDpCp) == Ranks{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23});
}

TEST_CASE("pipeline stages are outermost") {
  const ParallelismConfig config{.dp_replicate_size = 2, .tp_size = 2, .pp_size = 2};
  CHECK(config.coordinates(4) == MeshCoordinates{.pp = 1});
  CHECK(config.group(5, MeshDimension::pp) == Ranks{1, 5});
  CHECK(config.group(5, MeshDimension::tp) == Ranks{4, 5});
  CHECK(config.group(5, mesh::kDp) == Ranks{5, 7});
}

TEST_CASE("every rank is in one group of every set of dimensions, and coordinates have one rank") {
  const ParallelismConfig config{.dp_replicate_size = 2, .dp_shard_size = 3, .tp_size = 2, .cp_size = 2, .pp_size = 2};
  for (int64_t rank = 0; rank < config.total_size(); ++rank) {
    CHECK(config.rank_of(config.coordinates(rank)) == rank);
  }
  const std::vector<std::vector<MeshDimension>> sets{{MeshDimension::pp},
                                                     {MeshDimension::tp},
                                                     {mesh::kDp.begin(), mesh::kDp.end()},
                                                     {mesh::kDpCp.begin(), mesh::kDpCp.end()},
                                                     {env::kMeshOrder.begin(), env::kMeshOrder.end()},
                                                     {}};
  for (const auto& dimensions : sets) {
    std::set<int64_t> seen;
    for (const auto& group : config.groups(dimensions)) {
      CHECK(static_cast<int64_t>(group.size()) == config.size(dimensions));
      for (const int64_t rank : group) {
        CHECK(seen.insert(rank).second);
        CHECK(config.group(rank, dimensions) == group);
      }
    }
    CHECK(static_cast<int64_t>(seen.size()) == config.total_size());
  }
  CHECK(config.groups(std::array{MeshDimension::dp_replicate}).at(0) == Ranks{0, 12});
}

TEST_CASE("sizes, active dimensions and text") {
  CHECK(kLarge.total_size() == 24);
  CHECK(kLarge.data_parallel_size() == 6);
  CHECK(kLarge.non_data_parallel_size() == 4);
  using enum MeshDimension;
  CHECK(kLarge.active_mesh_dims() == std::vector<MeshDimension>{dp_replicate, dp_shard, cp, tp});
  CHECK(kLarge.text() == "dp_replicate 2 x dp_shard 3 x cp 2 x tp 2");
  CHECK(ParallelismConfig{}.text() == "1 rank");
  CHECK(ParallelismConfig{}.ranks_text() == "rank 0\n");
  CHECK(ParallelismConfig{.dp_shard_size = 2, .tp_size = 2}.ranks_text() ==
        "rank 0: dp_shard 0, tp 0\nrank 1: dp_shard 0, tp 1\nrank 2: dp_shard 1, tp 0\nrank 3: dp_shard 1, tp 1\n");
  CHECK(ParallelismConfig{.sp_size = 2, .pp_size = 2}.text() == "pp 2 x sp 2");
}

TEST_CASE("without any size all ranks are data parallel") {
  CHECK(ParallelismConfig{}.completed(6) == ParallelismConfig{.dp_replicate_size = 6});
  CHECK(ParallelismConfig{.tp_size = 1}.completed(1) == ParallelismConfig{.dp_replicate_size = 1, .tp_size = 1});
  CHECK(kHybrid.completed(8) == kHybrid);
  // Accelerate refuses this mesh.
  const ParallelismConfig replicated{.dp_replicate_size = 2, .tp_size = 2};
  CHECK(replicated.completed(4) == replicated);
}

TEST_CASE("a mesh that does not fit the job is refused with all factors") {
  const auto text = [](const ParallelismConfig& config, int64_t world_size) {
    return refusal([&] { (void)config.completed(world_size, {.rank = 1, .world_size = world_size, .host = "a"}); });
  };
  const auto usage = ErrorKind::usage;
  const std::string at = "[rank 1 of 4, a] parallelism_config: ";
  CHECK(text(kHybrid, 4) == std::pair(usage, at + "pp_size 1 x dp_replicate_size 2 x dp_shard_size 2 x cp_size 1 x "
                                                  "sp_size 1 x tp_size 2 is 8 ranks, the job has 4; the product must "
                                                  "be the world size"));
  CHECK(text({.tp_size = 2}, 4).second.find("tp_size 2 is 2 ranks, the job has 4") != std::string::npos);
  CHECK(text({.tp_size = 0}, 4) == std::pair(usage, at + "tp_size is 0, must be at least 1"));
  CHECK(text({.pp_size = -2}, 4) == std::pair(usage, at + "pp_size is -2, must be at least 1"));
  CHECK(text({.cp_size = 2, .sp_size = 2}, 4) ==
        std::pair(usage, at + "cp_size is 2 and sp_size 2; one of them must be 1"));
  CHECK(text({.dp_shard_size = int64_t{1} << 40, .tp_size = int64_t{1} << 40}, 4)
            .second.find("is too many ranks, the job has 4") != std::string::npos);
}

TEST_CASE("a rank outside of the mesh is refused") {
  for (const int64_t rank : {-1, 8}) {
    CHECK(refusal([&] { (void)kHybrid.coordinates(rank); }) ==
          std::pair(ErrorKind::usage, fmt::format("parallelism_config: rank is {}, must be from 0 to 7", rank)));
    CHECK(refusal([&] { (void)kHybrid.group(rank, mesh::kDp); }).first == ErrorKind::usage);
  }
}

TEST_CASE("the table contains option and variable of every size, as in Hugging Face Accelerate 1.15") {
  std::string text;
  env::for_each_parallelism_setting([&](const auto& row) {
    CHECK(row.key == row.option.name);
    CHECK(row.key == "parallelism_config_" + std::string(row.name));
    text += fmt::format("--{} {}\n", row.option.name, row.variable);
  });
  CHECK(text ==
        "--parallelism_config_dp_replicate_size PARALLELISM_CONFIG_DP_REPLICATE_SIZE\n"
        "--parallelism_config_dp_shard_size PARALLELISM_CONFIG_DP_SHARD_SIZE\n"
        "--parallelism_config_tp_size PARALLELISM_CONFIG_TP_SIZE\n"
        "--parallelism_config_cp_size PARALLELISM_CONFIG_CP_SIZE\n"
        "--parallelism_config_sp_size PARALLELISM_CONFIG_SP_SIZE\n"
        "--parallelism_config_pp_size PARALLELISM_CONFIG_PP_SIZE\n");
}

TEST_CASE("every size has its own row") {
  const ParallelismConfig given;
  const auto& [a, b, c, d, e, f] = given;
  const std::set<const void*> members{&a, &b, &c, &d, &e, &f};
  std::set<const void*> rows;
  env::for_each_parallelism_setting([&](const auto& row) { rows.insert(&row.of(given)); });
  CHECK(rows == members);
}

TEST_CASE("variables count without sizes from code only if the mesh is enabled") {
  env::Variables variables{{"PARALLELISM_CONFIG_TP_SIZE", "2"}};
  CHECK_FALSE(env::weigh_parallelism({}, variables, {}).config);
  variables.insert(*kUse.begin());
  CHECK(env::weigh_parallelism({}, variables, {}).config == ParallelismConfig{.tp_size = 2});
  CHECK(env::weigh_parallelism({}, kUse, {}).config == ParallelismConfig{});
  variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "false";
  CHECK_FALSE(env::weigh_parallelism({}, variables, {}).config);
  // As in Accelerate, ParallelismConfig() in code reads the variables in any case.
  CHECK(env::weigh_parallelism(ParallelismConfig{}, variables, {}).config == ParallelismConfig{.tp_size = 2});
}

TEST_CASE("each size has the precedence code, environment, config file") {
  const env::Config file{.path = "job.yaml",
                         .values = {{"use_parallelism_config", "true"},
                                    {"parallelism_config_dp_shard_size", "2"},
                                    {"parallelism_config_tp_size", "4"},
                                    {"parallelism_config_pp_size", "3"}}};
  const env::Variables variables{{"PARALLELISM_CONFIG_TP_SIZE", "2"}, {"PARALLELISM_CONFIG_PP_SIZE", "5"}};
  const auto result = env::weigh_parallelism(ParallelismConfig{.pp_size = 1}, variables, file);
  CHECK(result.config == ParallelismConfig{.dp_shard_size = 2, .tp_size = 2, .pp_size = 1});
  CHECK(result.conflicts ==
        std::vector<std::string>{
            "parallelism_config_tp_size is 2 from PARALLELISM_CONFIG_TP_SIZE; not used: 4 in job.yaml",
            "pp_size is 1 from the code; not used: 3 in job.yaml, 5 in PARALLELISM_CONFIG_PP_SIZE"});
}

TEST_CASE("invalid sizes are refused with their source") {
  env::Variables variables = kUse;
  variables["PARALLELISM_CONFIG_CP_SIZE"] = "two";
  CHECK(refusal([&] { env::weigh_parallelism({}, variables, {}); }) ==
        std::pair(ErrorKind::environment,
                  std::string("settings: PARALLELISM_CONFIG_CP_SIZE is 'two', must be an integer, at least 1")));
  CHECK(refusal([&] { env::weigh_parallelism(ParallelismConfig{.tp_size = 0}, {}, {}); }) ==
        std::pair(ErrorKind::usage, std::string("settings: tp_size is 0, must be an integer, at least 1")));
  CHECK(refusal([&] {
          env::weigh_parallelism({}, {{"ACCELERATE_USE_PARALLELISM_CONFIG", "maybe"}}, {});
        }).first == ErrorKind::environment);
}

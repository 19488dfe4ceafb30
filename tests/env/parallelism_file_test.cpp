// SPDX-License-Identifier: Apache-2.0
// The group parallelism_config of a config file.
#include <doctest/doctest.h>

#include <string>

#include "accelerate/env/config_keys.hpp"
#include "accelerate/env/parallelism_config.hpp"
#include "tests/env/refusal.hpp"

namespace env = accelerate::env;
using env::ParallelismConfig;

namespace {

std::optional<ParallelismConfig> mesh_of(const std::string& text) {
  return env::weigh_parallelism({}, {}, env::parse_config(text, "f.yaml")).config;
}

std::string refusal(const std::string& text) {
  return testing::refusal([&] { mesh_of(text); }).second;
}

}  // namespace

TEST_CASE("a file of Accelerate 1.15 configures the mesh, with every kind of training") {
  const std::string group =
      "parallelism_config:\n"
      "  parallelism_config_cp_backend: torch\n"
      "  parallelism_config_cp_comm_strategy: allgather\n"
      "  parallelism_config_cp_size: 1\n"
      "  parallelism_config_dp_replicate_size: 2\n"
      "  parallelism_config_dp_shard_size: 1\n"
      "  parallelism_config_sp_size: 1\n"
      "  parallelism_config_tp_size: 4\n";
  const ParallelismConfig expected{
      .dp_replicate_size = 2, .dp_shard_size = 1, .tp_size = 4, .cp_size = 1, .sp_size = 1};
  for (const std::string type : {"", "distributed_type: MULTI_GPU\n", "distributed_type: FSDP\nfsdp_config: {}\n"}) {
    CHECK(mesh_of(type + group) == expected);
  }
  CHECK(env::keys_without_meaning(env::parse_config(group, "f.yaml").values) ==
        std::vector<std::string>{"parallelism_config.parallelism_config_cp_backend",
                                 "parallelism_config.parallelism_config_cp_comm_strategy"});
  CHECK(mesh_of("parallelism_config: {tp_size: 2, pp_size: 3}") == ParallelismConfig{.tp_size = 2, .pp_size = 3});
  for (const char* none : {"parallelism_config: {}", "parallelism_config:", "cpu: true"}) {
    CHECK_FALSE(mesh_of(none));
  }
}

TEST_CASE("unknown keys and other types in parallelism_config are refused") {
  CHECK(refusal("parallelism_config: {tp_sise: 2}") ==
        "settings: f.yaml has the unknown key 'tp_sise' in parallelism_config; remove it");
  CHECK(refusal("parallelism_config: {parallelism_config_tp_sise: 2}") ==
        "settings: f.yaml has the unknown key 'parallelism_config_tp_sise' in parallelism_config; did you mean "
        "parallelism_config_tp_size?");
  CHECK(refusal("parallelism_config: {tp_size: 2, parallelism_config_tp_size: 2}") ==
        "settings: f.yaml has parallelism_config_tp_size twice in parallelism_config");
  CHECK(refusal("parallelism_config_tp_size: 2") ==
        "settings: f.yaml has parallelism_config_tp_size at the top level, must be in parallelism_config");
  CHECK(refusal("parallelism_config: 4") == "settings: parallelism_config of f.yaml is '4', must be a map of sizes");
  CHECK(refusal("parallelism_config: {tp_size: two}") ==
        "settings: parallelism_config_tp_size in f.yaml is 'two', must be an integer, at least 1");
}

// SPDX-License-Identifier: Apache-2.0
// The variables that `accelerate launch --use_deepspeed` sets for its ranks.
#include <doctest/doctest.h>

#include <string>

#include "accelerate/env/fsdp_settings.hpp"
#include "accelerate/env/settings.hpp"
#include "tests/env/refusal.hpp"

namespace env = accelerate::env;
using env::FsdpSettings;
using env::Variables;

namespace {

Variables with(Variables further) {
  further.emplace("ACCELERATE_USE_DEEPSPEED", "true");
  return further;
}

FsdpSettings settings_of(const Variables& variables) { return env::weigh_fsdp({}, variables, {}, "").settings; }

std::string refusal(const Variables& variables) {
  return testing::refusal([&] { settings_of(with(variables)); }).second;
}

const std::string kStage = "ACCELERATE_DEEPSPEED_ZERO_STAGE";
const std::string kParameters = "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE";
const std::string kOptimizer = "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE";

}  // namespace

TEST_CASE("DeepSpeed's variables enable sharded training with the strategy of the stage") {
  CHECK(settings_of(with({})) == FsdpSettings{.use_fsdp = true, .sharding_strategy = "SHARD_GRAD_OP"});
  for (const auto& [stage, strategy] : {std::pair("0", "NO_SHARD"), std::pair("1", "SHARD_OPTIM_OP"),
                                        std::pair("2", "SHARD_GRAD_OP"), std::pair("3", "FULL_SHARD")}) {
    CHECK(settings_of(with({{kStage, stage}})) == FsdpSettings{.use_fsdp = true, .sharding_strategy = strategy});
  }
  CHECK(settings_of(with({{kStage, "3"}, {kParameters, "cpu"}, {kOptimizer, "cpu"}})) ==
        FsdpSettings{.use_fsdp = true, .sharding_strategy = "FULL_SHARD", .offload_params = true});
  CHECK(settings_of(with({{kStage, "3"}, {kParameters, "none"}, {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"}})) ==
        FsdpSettings{.use_fsdp = true, .sharding_strategy = "FULL_SHARD"});
  CHECK(settings_of(with({{kStage, "3"}, {"FSDP_MIN_NUM_PARAMS", "7"}})) ==
        FsdpSettings{.use_fsdp = true, .sharding_strategy = "FULL_SHARD", .min_num_params = 7});
}

TEST_CASE("without ACCELERATE_USE_DEEPSPEED, or with ACCELERATE_USE_FSDP, DeepSpeed's variables have no effect") {
  CHECK(settings_of({{kStage, "nonsense"}}) == FsdpSettings{});
  CHECK(settings_of({{"ACCELERATE_USE_DEEPSPEED", "false"}, {kStage, "3"}}) == FsdpSettings{});
  // accelerate_launch passes the translated settings to its ranks, which inherit the original variables, too.
  CHECK(
      settings_of(with({{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_SHARDING_STRATEGY", "HYBRID_SHARD"}, {kStage, "3"}})) ==
      FsdpSettings{.use_fsdp = true, .sharding_strategy = "HYBRID_SHARD"});
  CHECK(settings_of(with({{"ACCELERATE_USE_FSDP", "false"}, {kStage, "3"}})) == FsdpSettings{.use_fsdp = false});
}

TEST_CASE("DeepSpeed's variables override the config file, and a value of the program overrides them") {
  const env::Config file{.path = "f.yaml", .values = {{"fsdp_sharding_strategy", "SHARD_OPTIM_OP"}}};
  const auto result =
      env::weigh_fsdp({.sharding_strategy = "HYBRID_SHARD"}, with({{kStage, "3"}}), file, "the command line");
  CHECK(result.settings == FsdpSettings{.use_fsdp = true, .sharding_strategy = "HYBRID_SHARD"});
  CHECK(result.conflicts ==
        std::vector<std::string>{"sharding_strategy is HYBRID_SHARD from the command line; not used: SHARD_OPTIM_OP in "
                                 "f.yaml, FULL_SHARD in ACCELERATE_DEEPSPEED_ZERO_STAGE"});
  CHECK(env::weigh_fsdp({}, with({{kStage, "3"}}), file, "").settings.sharding_strategy == "FULL_SHARD");
}

TEST_CASE("DeepSpeed's variables that would change the training are refused with the replacement") {
  CHECK(testing::refusal([] {
          settings_of({{"ACCELERATE_USE_DEEPSPEED", "maybe"}});
        }).second ==
        "settings: ACCELERATE_USE_DEEPSPEED is 'maybe', must be y, yes, t, true, on, 1, n, no, f, false, off or 0");
  CHECK(refusal({{kStage, "4"}}) == "settings: ACCELERATE_DEEPSPEED_ZERO_STAGE is '4', must be an integer, 0 to 3");
  CHECK(refusal({{kParameters, "cpu"}}) ==
        "settings: ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE is cpu, but zero_stage 2 does not offload; set zero_stage "
        "to 3 or remove it");
  CHECK(
      refusal({{kStage, "3"}, {kOptimizer, "nvme"}}) ==
      "settings: ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE is nvme, but only the memory of the host is supported; "
      "set it to cpu or none");
  CHECK(refusal({{"ACCELERATE_GRADIENT_CLIPPING", "1.0"}}) ==
        "settings: ACCELERATE_GRADIENT_CLIPPING is 1.0, but the program clips; call accelerator.clip_grad_norm_() and "
        "remove it");
  CHECK(
      refusal({{"ACCELERATE_DEEPSPEED_CONFIG_FILE", "ds.json"}}) ==
      "settings: ACCELERATE_DEEPSPEED_CONFIG_FILE is ds.json, but files of DeepSpeed are not read; set zero_stage and "
      "remove it");
  CHECK(refusal({{"ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "Moe"}}) ==
        "settings: ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES is Moe, but all parameters are divided; remove it");
}

// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/resolve_sharding.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "launch/plan/plan.hpp"
#include "tests/refusal.hpp"

namespace env = accelerate::env;
using accelerate::launch::LaunchError;
using accelerate::launch::LaunchOptions;
using accelerate::launch::parse_arguments;
using accelerate::launch::resolve_options;
using env::Variables;
using Words = std::vector<std::string>;

namespace {

const env::Config file = env::parse_config(
    "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_min_num_params: 7}\n", "f.yaml");
const env::Config deepspeed =
    env::parse_config("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 1}\n", "f.yaml");

LaunchOptions parsed(Words words) {
  words.emplace_back("./train");
  return parse_arguments(words).options;
}

/// Variables of sharded training of a rank.
Variables of_rank(const Words& words, const Variables& inherited = {}, const env::Config& config = {}) {
  const auto options = resolve_options(parsed(words), inherited, config).options;
  Variables all = accelerate::launch::plan(options, {}, inherited, {}).workers.at(0).environment;
  std::erase_if(all, [](const auto& variable) {
    return !variable.first.starts_with("FSDP_") && variable.first != "ACCELERATE_USE_FSDP";
  });
  return all;
}

std::string refused(const Words& words, const Variables& inherited = {}, const env::Config& config = {}) {
  return testing::refusal<LaunchError>([&] { (void)resolve_options(parsed(words), inherited, config); });
}

}  // namespace

TEST_CASE("options of FSDP are variables of the ranks, with Accelerate's names and values") {
  CHECK(of_rank({}).empty());
  CHECK(of_rank({"--use_fsdp"}) == Variables{{"ACCELERATE_USE_FSDP", "true"}});
  CHECK(of_rank({"--use-fsdp", "--fsdp-sharding-strategy", "full_shard", "--fsdp_reshard_after_forward=False",
                 "--fsdp_min_num_params", "1000", "--fsdp_version", "2", "--fsdp_offload_params", "true"}) ==
        Variables{{"ACCELERATE_USE_FSDP", "true"},
                  {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
                  {"FSDP_RESHARD_AFTER_FORWARD", "false"},
                  {"FSDP_MIN_NUM_PARAMS", "1000"},
                  {"FSDP_VERSION", "2"},
                  {"FSDP_OFFLOAD_PARAMS", "true"}});
}

TEST_CASE("zero_stage is the sharding strategy with its number, and 2 if it is not given") {
  const std::map<std::string, std::string> strategies{
      {"0", "NO_SHARD"}, {"1", "SHARD_OPTIM_OP"}, {"2", "SHARD_GRAD_OP"}, {"3", "FULL_SHARD"}};
  for (const auto& [stage, strategy] : strategies) {
    CHECK(of_rank({"--use_deepspeed", "--zero_stage", stage}) ==
          Variables{{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_SHARDING_STRATEGY", strategy}});
  }
  CHECK(of_rank({"--use_deepspeed"}).at("FSDP_SHARDING_STRATEGY") == "SHARD_GRAD_OP");
  CHECK(of_rank({"--use_deepspeed"}, {}, deepspeed).at("FSDP_SHARDING_STRATEGY") == "SHARD_OPTIM_OP");
  CHECK(of_rank({"--zero_stage=3"}, {}, deepspeed).at("FSDP_SHARDING_STRATEGY") == "FULL_SHARD");
  CHECK(refused({"--use_deepspeed", "--zero_stage", "4"}) ==
        "accelerate_launch: --zero_stage is '4', must be a whole number from 0 to 3");
  CHECK(refused({"--use_deepspeed", "--use_fsdp"}) ==
        "accelerate_launch: --use_deepspeed and --use_fsdp are given, must be one of them; both shard the training");
  CHECK(refused({"--use_fsdp", "--zero_stage", "1", "--fsdp_sharding_strategy", "2"}) ==
        "accelerate_launch: --zero_stage 1 and --fsdp_sharding_strategy SHARD_GRAD_OP are given, must be one of them");
}

TEST_CASE("the config file's settings of sharded training are variables of the ranks") {
  CHECK(of_rank({}, {}, file) == Variables{{"ACCELERATE_USE_FSDP", "true"},
                                           {"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"},
                                           {"FSDP_MIN_NUM_PARAMS", "7"}});
  CHECK(of_rank({}, {}, deepspeed) ==
        Variables{{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_SHARDING_STRATEGY", "SHARD_OPTIM_OP"}});
}

TEST_CASE("sharded training: the command line overrides variables, which override the file") {
  const Variables inherited{{"FSDP_SHARDING_STRATEGY", "1"}, {"FSDP_MIN_NUM_PARAMS", "8"}};
  const Words words{"--fsdp_min_num_params", "9"};
  CHECK(of_rank(words, inherited, file) == Variables{{"ACCELERATE_USE_FSDP", "true"},
                                                     {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
                                                     {"FSDP_MIN_NUM_PARAMS", "9"}});
  CHECK(resolve_options(parsed(words), inherited, file).conflicts ==
        Words{"fsdp_sharding_strategy is FULL_SHARD from FSDP_SHARDING_STRATEGY; not used: SHARD_GRAD_OP in f.yaml",
              "min_num_params is 9 from the command line; not used: 7 in f.yaml, 8 in FSDP_MIN_NUM_PARAMS"});
  CHECK(of_rank({"--use_fsdp=no"}, {}, file) == Variables{{"ACCELERATE_USE_FSDP", "false"}});
  CHECK(of_rank({}, {{"ACCELERATE_USE_FSDP", "0"}}, file).at("ACCELERATE_USE_FSDP") == "false");
  CHECK(of_rank({"--use_fsdp"}, {{"ACCELERATE_USE_FSDP", "0"}}) == Variables{{"ACCELERATE_USE_FSDP", "true"}});
}

TEST_CASE("settings on the command line without sharded training are refused") {
  CHECK(refused({"--fsdp_forward_prefetch", "true"}) ==
        "accelerate_launch: fsdp_forward_prefetch is given, but sharded training is off; add --use_fsdp, or "
        "--use_deepspeed if you gave --zero_stage");
  CHECK(refused({"--zero_stage", "2"}).starts_with("accelerate_launch: fsdp_sharding_strategy is given, but "));
  CHECK(refused({"--fsdp_version", "2"}, {{"ACCELERATE_USE_FSDP", "0"}}, file).find("sharded training is off") !=
        std::string::npos);
  CHECK(refused({"--fsdp_version", "2"}, {{"ACCELERATE_USE_FSDP", "1"}}).empty());
  CHECK(refused({}, {{"FSDP_VERSION", "2"}}).empty());
}

TEST_CASE("both types of state dicts are accepted") {
  for (const char* type : {"SHARDED_STATE_DICT", "FULL_STATE_DICT"}) {
    CHECK(resolve_options(parsed({"--use_fsdp", "--fsdp_state_dict_type", type}), {}, {}).conflicts.empty());
  }
}

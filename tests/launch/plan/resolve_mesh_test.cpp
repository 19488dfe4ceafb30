// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/resolve_mesh.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "launch/plan/plan.hpp"
#include "launch/runners/forwarded_environment.hpp"
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
    "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_tp_size: 4\n", "f.yaml");

LaunchOptions parsed(Words words) {
  words.emplace_back("./train");
  return parse_arguments(words).options;
}

/// Variables of the mesh of a rank.
Variables of_rank(const Words& words, const Variables& inherited = {}, const env::Config& config = {}) {
  const auto options = resolve_options(parsed(words), inherited, config).options;
  Variables all = accelerate::launch::plan(options, {}, inherited, {}).workers.at(0).environment;
  std::erase_if(all, [](const auto& variable) {
    return !variable.first.starts_with("PARALLELISM_") && variable.first != "ACCELERATE_USE_PARALLELISM_CONFIG";
  });
  return all;
}

}  // namespace

TEST_CASE("sizes of the mesh are variables of the ranks, with Accelerate's names") {
  CHECK(of_rank({}).empty());
  CHECK(of_rank({"--use_parallelism_config", "--parallelism_config_tp_size", "2", "--parallelism-config-pp-size=3"}) ==
        Variables{{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                  {"PARALLELISM_CONFIG_TP_SIZE", "2"},
                  {"PARALLELISM_CONFIG_PP_SIZE", "3"}});
}

TEST_CASE("the command line takes precedence over the environment, and that over the config file") {
  CHECK(of_rank({}, {}, file) == Variables{{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                                           {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2"},
                                           {"PARALLELISM_CONFIG_TP_SIZE", "4"}});
  const Variables inherited{{"PARALLELISM_CONFIG_TP_SIZE", "8"}};
  CHECK(of_rank({}, inherited, file).at("PARALLELISM_CONFIG_TP_SIZE") == "8");
  CHECK(of_rank({"--parallelism_config_tp_size", "16"}, inherited, file).at("PARALLELISM_CONFIG_TP_SIZE") == "16");
  CHECK(resolve_options(parsed({"--parallelism_config_tp_size", "16"}), inherited, file).conflicts ==
        Words{"tp_size is 16 from the command line; not used: 4 in f.yaml, 8 in "
              "PARALLELISM_CONFIG_TP_SIZE"});
  CHECK(of_rank({"--use_parallelism_config=no"}, {}, file) ==
        Variables{{"ACCELERATE_USE_PARALLELISM_CONFIG", "false"}});
}

TEST_CASE("sizes without a mesh are refused, as are invalid ones") {
  const auto refused = [](const Words& words) {
    return testing::refusal<LaunchError>([&] { (void)resolve_options(parsed(words), {}, {}); });
  };
  CHECK(refused({"--parallelism_config_tp_size", "2"}) ==
        "accelerate_launch: parallelism_config_tp_size is given, but there is no mesh; add --use_parallelism_config");
  CHECK(refused({"--use_parallelism_config", "--parallelism_config_tp_size", "0"}).find("parallelism_config_tp_size") !=
        std::string::npos);
}

TEST_CASE("sizes are passed on to the launchers of other machines") {
  const auto options =
      resolve_options(parsed({"--use_parallelism_config", "--parallelism_config_tp_size", "2"}), {}, {}).options;
  const auto words = accelerate::launch::arguments_of(options);
  for (const char* word : {"--use_parallelism_config=true", "--parallelism_config_tp_size=2"}) {
    CHECK(std::find(words.begin(), words.end(), word) != words.end());
  }
}

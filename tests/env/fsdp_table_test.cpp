// SPDX-License-Identifier: Apache-2.0
// Tests every row of the table of sharded training with every source of its setting.
#include "accelerate/env/fsdp_table.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "launch/plan/plan.hpp"
#include "launch/plan/resolve.hpp"
#include "tests/env/refusal.hpp"

namespace env = accelerate::env;
namespace launch = accelerate::launch;
using accelerate::ErrorKind;
using env::FsdpSettings;
using env::Variables;
using testing::refusal;

namespace {

std::string sample(const env::Flag& /*type*/) { return "false"; }
std::string sample(const env::Integer& type) { return std::to_string(type.lowest + 1); }
std::string sample(const env::NumberedName& type) { return std::string(type.rows.back().name); }
std::string sample(const env::NotSupported& /*type*/) { return ""; }
std::string sample(const env::NameList& /*type*/) { return "Block,nets::Head"; }

const Variables on{{"ACCELERATE_USE_FSDP", "true"}};
const env::Config file{.path = "job.yaml", .values = {{"use_fsdp", "true"}}};

FsdpSettings from_variables(const Variables& variables) { return env::weigh_fsdp({}, variables, {}, "").settings; }

/// The error of all three sources for one setting.
struct Refusals {
  std::string variable;
  std::string file;
  std::string option;
};

Refusals refusals(const std::string& name, const std::string& text) {
  Refusals found;
  env::for_each_fsdp_setting([&](const auto& row) {
    if (row.name != name) return;
    Variables variables = on;
    variables[std::string(row.variable)] = text;
    env::Config config = file;
    config.values[std::string(row.key)] = text;
    found.variable = refusal([&] { from_variables(variables); }).second;
    found.file = refusal([&] { env::weigh_fsdp({}, {}, config, ""); }).second;
    found.option = refusal([&] {
                     launch::parse_arguments({fmt::format("--{}={}", row.option.name, text), "x"});
                   }).second;
  });
  return found;
}

void check_refused(const std::string& name, const std::string& text, const std::string& expected) {
  CAPTURE(name);
  const Refusals found = refusals(name, text);
  CHECK(found.variable.ends_with(fmt::format(" is '{}', must be {}", text, expected)));
  CHECK(found.variable.find("settings: FSDP_") == 0);
  CHECK(found.file == fmt::format("settings: fsdp_{} in job.yaml is '{}', must be {}", name, text, expected));
  CHECK(found.option == fmt::format("accelerate_launch: --fsdp_{} is '{}', must be {}", name, text, expected));
}

}  // namespace

TEST_CASE("the table contains option and variable of every setting, as in Hugging Face Accelerate 1.15") {
  std::string text;
  env::for_each_fsdp_setting([&](const auto& row) {
    CHECK(row.key == row.option.name);
    text += fmt::format("--{} {}\n", row.option.name, row.variable);
  });
  CHECK(text ==
        "--use_fsdp ACCELERATE_USE_FSDP\n"
        "--fsdp_sharding_strategy FSDP_SHARDING_STRATEGY\n"
        "--fsdp_reshard_after_forward FSDP_RESHARD_AFTER_FORWARD\n"
        "--fsdp_forward_prefetch FSDP_FORWARD_PREFETCH\n"
        "--fsdp_min_num_params FSDP_MIN_NUM_PARAMS\n"
        "--fsdp_use_orig_params FSDP_USE_ORIG_PARAMS\n"
        "--fsdp_limit_all_gathers FSDP_LIMIT_ALL_GATHERS\n"
        "--fsdp_sync_module_states FSDP_SYNC_MODULE_STATES\n"
        "--fsdp_offload_params FSDP_OFFLOAD_PARAMS\n"
        "--fsdp_activation_checkpointing FSDP_ACTIVATION_CHECKPOINTING\n"
        "--fsdp_version FSDP_VERSION\n"
        "--fsdp_cpu_ram_efficient_loading FSDP_CPU_RAM_EFFICIENT_LOADING\n"
        "--fsdp_activation_checkpointing_offload FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD\n"
        "--fsdp_state_dict_type FSDP_STATE_DICT_TYPE\n"
        "--fsdp_backward_prefetch FSDP_BACKWARD_PREFETCH\n"
        "--fsdp_auto_wrap_policy FSDP_AUTO_WRAP_POLICY\n"
        "--fsdp_transformer_layer_cls_to_wrap FSDP_TRANSFORMER_CLS_TO_WRAP\n"
        "--fsdp_ignored_modules FSDP_IGNORED_MODULES\n");
}

TEST_CASE("every setting of sharded training has the same value from variable, config file and option") {
  env::for_each_fsdp_setting([](const auto& row) {
    const std::string text = sample(row.type);
    if (row.name == "use_fsdp" || text.empty()) return;
    CAPTURE(text);
    FsdpSettings expected{.use_fsdp = true};
    row.of(expected) = row.type.parse(text);
    REQUIRE(row.of(expected));
    Variables variables = on;
    variables[std::string(row.variable)] = text;
    CHECK(from_variables(variables) == expected);
    env::Config config = file;
    config.values[std::string(row.key)] = text;
    CHECK(env::weigh_fsdp({}, {}, config, "").settings == expected);
    // From the option through the launcher to the variables of a rank.
    const auto options =
        launch::parse_arguments({"--use_fsdp", fmt::format("--{}", row.option.name), text, "./train"}).options;
    const auto resolved = launch::resolve_options(options, {}, {}).options;
    const Variables of_rank = launch::plan(resolved, {}, {}, {}).workers.at(0).environment;
    CHECK(of_rank.at("ACCELERATE_USE_FSDP") == "true");
    CHECK(of_rank.at(std::string(row.variable)) == text);
    CHECK(from_variables(of_rank) == expected);
  });
}

TEST_CASE("settings of sharded training are read only if use_fsdp is true") {
  Variables variables{{"FSDP_SHARDING_STRATEGY", "no such"}};
  CHECK(from_variables(variables) == FsdpSettings{});
  variables["ACCELERATE_USE_FSDP"] = "false";
  CHECK(from_variables(variables) == FsdpSettings{.use_fsdp = false});
  CHECK(env::weigh_fsdp({}, variables, file, "").settings == FsdpSettings{.use_fsdp = false});
  variables["ACCELERATE_USE_FSDP"] = "maybe";
  CHECK(refusal([&] { from_variables(variables); }).second ==
        "settings: ACCELERATE_USE_FSDP is 'maybe', must be y, yes, t, true, on, 1, n, no, f, false, off or 0");
}

TEST_CASE("names of sharded training are accepted in any case and by PyTorch's number") {
  const auto strategy = [](const std::string& text) {
    Variables variables = on;
    variables["FSDP_SHARDING_STRATEGY"] = text;
    return from_variables(variables).sharding_strategy;
  };
  CHECK(strategy("full_shard") == "FULL_SHARD");
  CHECK(strategy("Shard_Optim_Op") == "SHARD_OPTIM_OP");
  CHECK(strategy("1") == "FULL_SHARD");
  CHECK(strategy("2") == "SHARD_GRAD_OP");
  CHECK(strategy("3") == "NO_SHARD");
  CHECK(strategy("4") == "HYBRID_SHARD");
  CHECK(strategy("Hybrid_Shard_Zero2") == "HYBRID_SHARD_ZERO2");
  CHECK(env::NumberedName{env::kStateDictTypes}.parse("3") == "SHARDED_STATE_DICT");
  CHECK(env::NumberedName{env::kBackwardPrefetches}.parse("2") == "BACKWARD_POST");
  CHECK_FALSE(env::NumberedName{env::kAutoWrapPolicies}.parse("1"));
  CHECK_FALSE(env::NumberedName{env::kAutoWrapPolicies}.parse(""));
}

TEST_CASE("reshard_after_forward accepts the strategies that Accelerate's questionnaire writes for FSDP1") {
  CHECK(env::ReshardAfterForward::parse("FULL_SHARD") == true);
  CHECK(env::ReshardAfterForward::parse("shard_grad_op") == false);
  CHECK(env::ReshardAfterForward::parse("False") == false);
  check_refused("reshard_after_forward", "NO_SHARD",
                "true, false, FULL_SHARD (true) or SHARD_GRAD_OP (false); other strategies are values of "
                "fsdp_sharding_strategy");
}

TEST_CASE("values that would change the training are refused with the replacement") {
  check_refused("sharding_strategy", "6",
                "NO_SHARD, SHARD_OPTIM_OP, SHARD_GRAD_OP, FULL_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2");
  check_refused("state_dict_type", "LOCAL_STATE_DICT",
                "FULL_STATE_DICT or SHARDED_STATE_DICT; files of LOCAL_STATE_DICT fit one number of ranks only");
  check_refused("auto_wrap_policy", "MINE", "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP");
  check_refused("backward_prefetch", "LATE", "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH");
  check_refused("activation_checkpointing_offload", "true", "false; activations stay on the device");
  check_refused("ignored_modules", "head", "absent; all parameters of a prepared model are sharded");
  check_refused("offload_params", "some", env::Flag::expected());
  const Refusals classes = refusals("transformer_layer_cls_to_wrap", "Block,");
  const std::string reason = " is 'Block,', must be names separated by commas";
  CHECK(classes.variable == "settings: FSDP_TRANSFORMER_CLS_TO_WRAP" + reason);
  CHECK(classes.file == "settings: fsdp_transformer_layer_cls_to_wrap in job.yaml" + reason);
  CHECK(classes.option == "accelerate_launch: --fsdp_transformer_layer_cls_to_wrap" + reason);
}

TEST_CASE("numbers of sharded training out of range are refused") {
  CHECK(refusals("version", "3").file == "settings: fsdp_version in job.yaml is '3', must be an integer, 1 to 2");
  CHECK(refusals("version", "3").option ==
        "accelerate_launch: --fsdp_version is '3', must be a whole number from 1 to 2");
  CHECK(refusals("min_num_params", "0").variable ==
        "settings: FSDP_MIN_NUM_PARAMS is '0', must be an integer, at least 1");
}

TEST_CASE("every member of the settings of sharded training has its own row") {
  const FsdpSettings given;
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r] = given;
  const std::set<const void*> members{&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l, &m, &n, &o, &p, &q, &r};
  std::set<const void*> rows;
  env::for_each_fsdp_setting([&](const auto& row) { rows.insert(&row.of(given)); });
  CHECK(rows == members);
}

TEST_CASE("the reference lists every setting of sharded training") {
  std::ifstream text(TEST_SOURCE_DIR "/docs/reference/settings.md");
  std::stringstream page;
  page << text.rdbuf();
  env::for_each_fsdp_setting([&](const auto& row) {
    const std::string line = fmt::format("\n| `--{}` | `{}` | ", row.option.name, row.variable);
    CAPTURE(line);
    CHECK(page.str().find(line) != std::string::npos);
  });
}

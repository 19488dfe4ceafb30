// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <limits>
#include <utility>

#include "accelerate/sharding/plugin.hpp"
#include "tests/refusal.hpp"

using accelerate::sharding::FullyShardedDataParallelPlugin;
using accelerate::sharding::resolve_sharding_settings;
using accelerate::sharding::ShardingSettings;
using enum accelerate::sharding::ShardingStrategy;
using testing::refusal;

namespace {

using Variables = accelerate::env::Variables;

ShardingSettings from(Variables variables) {
  variables["ACCELERATE_USE_FSDP"] = "true";
  return resolve_sharding_settings({}, {}, variables, {});
}

std::string refused(const FullyShardedDataParallelPlugin& plugin) {
  auto with_strategy = plugin;
  with_strategy.sharding_strategy = full_shard;
  return refusal([&] { (void)resolve_sharding_settings({}, with_strategy, {}, {}); });
}

}  // namespace

TEST_CASE("the code takes precedence over the environment, which counts only if FSDP is on") {
  CHECK(resolve_sharding_settings({}, {}, {}, {}).strategy == no_shard);
  CHECK(resolve_sharding_settings({}, {}, {{"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}}, {}).strategy == no_shard);
  CHECK(from({}).strategy == full_shard);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"}}).strategy == shard_grad_op);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "shard_optim_op"}}).strategy == shard_optim_op);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "1"}}).strategy == full_shard);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "2"}}).strategy == shard_grad_op);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "3"}}).strategy == no_shard);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "HYBRID_SHARD"}}).strategy == hybrid_shard);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "4"}}).strategy == hybrid_shard);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "hybrid_shard_zero2"}}).strategy == hybrid_shard_zero2);
  CHECK(from({{"FSDP_SHARDING_STRATEGY", "5"}}).strategy == hybrid_shard_zero2);
  const Variables on{{"ACCELERATE_USE_FSDP", "1"}, {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}};
  CHECK(resolve_sharding_settings(shard_optim_op, {}, on, {}).strategy == shard_optim_op);
  CHECK(resolve_sharding_settings(no_shard, {}, on, {}).strategy == no_shard);
  CHECK(resolve_sharding_settings({}, {.sharding_strategy = shard_grad_op}, on, {}).strategy == shard_grad_op);
  CHECK(resolve_sharding_settings(full_shard, {.sharding_strategy = full_shard}, {}, {}).strategy == full_shard);
}

TEST_CASE("options come from the plugin, then from the environment, then from the defaults") {
  using enum accelerate::sharding::StateDictType;
  CHECK((from({}).state_dict_type == sharded_state_dict));
  CHECK((from({{"FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT"}}).state_dict_type == full_state_dict));
  CHECK((from({{"FSDP_STATE_DICT_TYPE", "sharded_state_dict"}}).state_dict_type == sharded_state_dict));
  CHECK((resolve_sharding_settings({}, {.sharding_strategy = full_shard, .state_dict_type = full_state_dict},
                                   {{"ACCELERATE_USE_FSDP", "1"}, {"FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT"}}, {})
             .state_dict_type == full_state_dict));
  const auto defaults = from({}).full_shard;
  CHECK(defaults.shard_parameters);
  CHECK(defaults.reshard_after_forward);
  CHECK(defaults.prefetch);
  CHECK(defaults.units.min_num_params == 0);
  const auto read = from({{"FSDP_RESHARD_AFTER_FORWARD", "false"},
                          {"FSDP_FORWARD_PREFETCH", "no"},
                          {"FSDP_MIN_NUM_PARAMS", "1000"},
                          {"FSDP_SYNC_MODULE_STATES", "true"},
                          {"FSDP_OFFLOAD_PARAMS", "false"}})
                        .full_shard;
  CHECK_FALSE(read.reshard_after_forward);
  CHECK_FALSE(read.prefetch);
  CHECK(read.units.min_num_params == 1000);
  CHECK_FALSE(from({{"FSDP_RESHARD_AFTER_FORWARD", "SHARD_GRAD_OP"}}).full_shard.reshard_after_forward);
  const auto given =
      resolve_sharding_settings({},
                                {.sharding_strategy = shard_grad_op,
                                 .reshard_after_forward = true,
                                 .forward_prefetch = true,
                                 .shard_units = {"blocks.*"},
                                 .min_num_params = 7},
                                {{"ACCELERATE_USE_FSDP", "1"}, {"FSDP_RESHARD_AFTER_FORWARD", "false"}}, {})
          .full_shard;
  CHECK_FALSE(given.shard_parameters);
  CHECK(given.reshard_after_forward);
  CHECK(given.units.min_num_params == 7);
  CHECK(given.units.units == std::vector<std::string>{"blocks.*"});
}

TEST_CASE("classes of units are taken from the plugin, then from the environment if its policy uses them") {
  const auto classes = [](const FullyShardedDataParallelPlugin& plugin, accelerate::env::Variables variables) {
    variables["ACCELERATE_USE_FSDP"] = "1";
    variables["FSDP_TRANSFORMER_CLS_TO_WRAP"] = "Block, Head";
    return resolve_sharding_settings({}, plugin, variables, {}).full_shard.units.classes;
  };
  const std::vector<std::string> from_environment{"Block", "Head"};
  CHECK(classes({}, {}) == from_environment);
  CHECK(classes({}, {{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"}}) == from_environment);
  CHECK(classes({}, {{"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"}}).empty());
  CHECK(classes({.transformer_cls_names_to_wrap = {"Layer"}}, {}) == std::vector<std::string>{"Layer"});
}

TEST_CASE("gathers ahead in the backward follow backward_prefetch, otherwise forward_prefetch") {
  using enum accelerate::sharding::BackwardPrefetch;
  const auto prefetches = [](const ShardingSettings& settings) {
    return std::pair(settings.full_shard.prefetch, settings.full_shard.prefetch_in_backward);
  };
  CHECK(prefetches(from({})) == std::pair(true, true));
  CHECK(prefetches(from({{"FSDP_FORWARD_PREFETCH", "false"}})) == std::pair(false, false));
  CHECK(prefetches(from({{"FSDP_BACKWARD_PREFETCH", "NO_PREFETCH"}})) == std::pair(true, false));
  CHECK(prefetches(from({{"FSDP_BACKWARD_PREFETCH", "3"}})) == std::pair(true, false));
  for (const char* value : {"BACKWARD_PRE", "BACKWARD_POST"}) {
    CHECK(prefetches(from({{"FSDP_FORWARD_PREFETCH", "false"}, {"FSDP_BACKWARD_PREFETCH", value}})) ==
          std::pair(false, true));
  }
  const Variables on{{"ACCELERATE_USE_FSDP", "1"}, {"FSDP_BACKWARD_PREFETCH", "NO_PREFETCH"}};
  CHECK(prefetches(resolve_sharding_settings({}, {.backward_prefetch = backward_post}, on, {})) ==
        std::pair(true, true));
  const auto config = accelerate::env::parse_config(
      "distributed_type: FSDP\nfsdp_config: {fsdp_backward_prefetch: NO_PREFETCH}\n", "f");
  CHECK(prefetches(resolve_sharding_settings({}, {}, {}, {}, config)) == std::pair(true, false));
  CHECK(prefetches(resolve_sharding_settings(full_shard, {.backward_prefetch = no_prefetch}, {}, {})) ==
        std::pair(true, false));
}

TEST_CASE("auto_wrap_policy selects which options of units count") {
  using enum accelerate::sharding::AutoWrapPolicy;
  constexpr int64_t kWholeModel = std::numeric_limits<int64_t>::max();
  const auto units = [](FullyShardedDataParallelPlugin plugin, const char* policy) {
    plugin.sharding_strategy = full_shard;
    const Variables variables{{"ACCELERATE_USE_FSDP", "1"},
                              {"FSDP_AUTO_WRAP_POLICY", policy},
                              {"FSDP_TRANSFORMER_CLS_TO_WRAP", "Block"},
                              {"FSDP_MIN_NUM_PARAMS", "9"}};
    return resolve_sharding_settings({}, plugin, variables, {}).full_shard.units;
  };
  CHECK(units({}, "NO_WRAP").min_num_params == kWholeModel);
  CHECK(units({}, "NO_WRAP").classes.empty());
  CHECK(units({.min_num_params = 5}, "NO_WRAP").min_num_params == 5);  // the code takes precedence
  CHECK(units({.shard_units = {"head"}}, "NO_WRAP").units == std::vector<std::string>{"head"});
  CHECK(units({.auto_wrap_policy = no_wrap}, "TRANSFORMER_BASED_WRAP").min_num_params == kWholeModel);
  CHECK(units({.auto_wrap_policy = size_based_wrap}, "TRANSFORMER_BASED_WRAP").classes.empty());
  CHECK(units({.auto_wrap_policy = transformer_based_wrap}, "NO_WRAP").classes == std::vector<std::string>{"Block"});
  CHECK(units({.auto_wrap_policy = transformer_based_wrap}, "NO_WRAP").min_num_params == 9);
  const std::string conflict =
      "sharding: auto_wrap_policy is no_wrap, by which the model is one unit, and shard_units, "
      "transformer_cls_names_to_wrap or min_num_params is set; leave them or the policy unset";
  CHECK(refused({.shard_units = {"head"}, .auto_wrap_policy = no_wrap}) == conflict);
  CHECK(refused({.transformer_cls_names_to_wrap = {"Block"}, .auto_wrap_policy = no_wrap}) == conflict);
  CHECK(refused({.min_num_params = 7, .auto_wrap_policy = no_wrap}) == conflict);
  CHECK(refused({.transformer_cls_names_to_wrap = {"Block"}, .auto_wrap_policy = size_based_wrap}) ==
        "sharding: auto_wrap_policy is size_based_wrap, and transformer_cls_names_to_wrap has 'Block'; leave one of "
        "them unset");
}

TEST_CASE("options of Accelerate that are not supported are errors with the remedy") {
  const std::string remedy =
      "', and all parameters of a prepared model are sharded; keep what every rank needs whole outside of the prepared "
      "module: frozen parameters as buffers or in a module that is not prepared, others in a module that a second "
      "Accelerator without sharding prepares";
  CHECK(refused({.ignored_modules = {"experts", "head"}}) == "sharding: ignored_modules has 'experts" + remedy);
  CHECK(refused({.ignored_parameters = {"scale"}}) == "sharding: ignored_parameters has 'scale" + remedy);
  CHECK(refused({.mixed_precision_policy = "bf16"}) ==
        "sharding: mixed_precision_policy is 'bf16', and sharding has no precision of its own; set "
        "AcceleratorOptions::mixed_precision for autocast, or precision_policy to pure_bf16() for bfloat16 parameters "
        "with float32 "
        "masters, of which gradients are reduced in float32");
  CHECK_FALSE(refusal([] { (void)from({{"FSDP_IGNORED_MODULES", "experts"}}); }).empty());
}

TEST_CASE("the hybrid strategies divide within a machine or within dp_shard_size ranks") {
  const auto machine = resolve_sharding_settings(hybrid_shard, {}, {}, {}).full_shard;
  CHECK(machine.is_hybrid);
  CHECK(machine.shard_parameters);
  CHECK(machine.dp_shard_size == 0);
  const auto given = resolve_sharding_settings(hybrid_shard_zero2, {.dp_shard_size = 4}, {}, {}).full_shard;
  CHECK(given.is_hybrid);
  CHECK_FALSE(given.shard_parameters);
  CHECK(given.dp_shard_size == 4);
  CHECK_FALSE(resolve_sharding_settings(full_shard, {}, {}, {}).full_shard.is_hybrid);
  CHECK(refused({.dp_shard_size = 2}) ==
        "sharding: dp_shard_size is 2, and full_shard divides over all ranks; use hybrid_shard, or leave dp_shard_size "
        "unset");
  CHECK(refusal([] { (void)resolve_sharding_settings(hybrid_shard, {.dp_shard_size = 0}, {}, {}); }) ==
        "sharding: dp_shard_size is 0, must be at least 1");
}

TEST_CASE("the config file counts after the environment") {
  const auto config = accelerate::env::parse_config(
      "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_OPTIM_OP, fsdp_min_num_params: 7}\n", "f");
  CHECK(resolve_sharding_settings({}, {}, {}, {}, config).strategy == shard_optim_op);
  CHECK(resolve_sharding_settings({}, {}, {}, {}, config).full_shard.units.min_num_params == 7);
  CHECK(resolve_sharding_settings({}, {}, {{"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}}, {}, config).strategy ==
        full_shard);
  CHECK(resolve_sharding_settings({}, {}, {{"ACCELERATE_USE_FSDP", "false"}}, {}, config).strategy == no_shard);
  CHECK(resolve_sharding_settings(shard_grad_op, {}, {}, {}, config).strategy == shard_grad_op);
  const auto hybrid = accelerate::env::parse_config(
      "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n", "f");
  CHECK(resolve_sharding_settings({}, {}, {}, {}, hybrid).full_shard.is_hybrid);
}

TEST_CASE("options with one possible value are errors otherwise, with the reason") {
  CHECK(refused({.use_orig_params = false}) ==
        "sharding: use_orig_params is false, must be true, because parameters always keep their identity");
  CHECK(refused({.limit_all_gathers = false}) ==
        "sharding: limit_all_gathers is false, must be true, because at most two units are gathered at a time");
  CHECK(
      refused({.sync_module_states = false}) ==
      "sharding: sync_module_states is false, must be true, because prepare() always makes the parameters of all ranks "
      "equal to rank 0's");
  const std::string loading =
      "sharding: cpu_ram_efficient_loading is false, must be true, because each rank always reads only its part of a "
      "checkpoint";
  CHECK(refused({.cpu_ram_efficient_loading = false}) == loading);
  CHECK(refusal([] { (void)from({{"FSDP_CPU_RAM_EFFICIENT_LOADING", "false"}}); }) == loading);
  CHECK(from({{"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"}}).strategy == full_shard);
  CHECK(refused({.activation_checkpointing = true}) ==
        "sharding: activation_checkpointing is true, must be false, because the model selects the recomputed parts; "
        "call nn::checkpoint() in its forward");
  CHECK(refused({.min_num_params = 0}) == "sharding: min_num_params is 0, must be at least 1");
  CHECK(refused({.use_orig_params = true, .limit_all_gathers = true, .cpu_offload = false}).empty());
}

TEST_CASE("cpu_offload needs a strategy that divides the parameters") {
  CHECK_FALSE(from({}).full_shard.cpu_offload);
  CHECK(from({{"FSDP_OFFLOAD_PARAMS", "true"}}).full_shard.cpu_offload);
  CHECK(from({{"FSDP_OFFLOAD_PARAMS", "1"}, {"FSDP_SHARDING_STRATEGY", "HYBRID_SHARD"}}).full_shard.cpu_offload);
  CHECK_FALSE(resolve_sharding_settings(full_shard, {.cpu_offload = false},
                                        {{"ACCELERATE_USE_FSDP", "1"}, {"FSDP_OFFLOAD_PARAMS", "true"}}, {})
                  .full_shard.cpu_offload);
  const auto config = accelerate::env::parse_config(
      "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_offload_params: true}\n", "f");
  CHECK(resolve_sharding_settings({}, {}, {}, {}, config).full_shard.cpu_offload);
  for (const auto strategy : {shard_optim_op, shard_grad_op, hybrid_shard_zero2}) {
    CHECK(refusal([&] { (void)resolve_sharding_settings(strategy, {.cpu_offload = true}, {}, {}); }) ==
          fmt::format("sharding: cpu_offload is true, and with {} every rank keeps whole parameters on its device; use "
                      "full_shard or hybrid_shard, or set cpu_offload to false",
                      strategy_name(strategy)));
    CHECK_FALSE(resolve_sharding_settings(strategy, {.cpu_offload = false}, {}, {}).full_shard.cpu_offload);
  }
  CHECK_FALSE(resolve_sharding_settings(no_shard, {.cpu_offload = true}, {}, {}).full_shard.cpu_offload);
}

TEST_CASE("values that are not understood are errors with the variable and the value") {
  CHECK(refusal([] {
          (void)from({{"FSDP_SHARDING_STRATEGY", "SOME_SHARD"}});
        }) ==
        "settings: FSDP_SHARDING_STRATEGY is 'SOME_SHARD', must be NO_SHARD, SHARD_OPTIM_OP, SHARD_GRAD_OP, "
        "FULL_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2");
  CHECK(refusal([] {
          (void)from({{"FSDP_MIN_NUM_PARAMS", "many"}});
        }) == "settings: FSDP_MIN_NUM_PARAMS is 'many', must be an integer, at least 1");
  CHECK(refusal([] {
          (void)from({{"FSDP_FORWARD_PREFETCH", "maybe"}});
        }) == "settings: FSDP_FORWARD_PREFETCH is 'maybe', must be y, yes, t, true, on, 1, n, no, f, false, off or 0");
  CHECK(refusal([] {
          (void)resolve_sharding_settings({}, {}, {{"ACCELERATE_USE_FSDP", "perhaps"}}, {});
        }) == "settings: ACCELERATE_USE_FSDP is 'perhaps', must be y, yes, t, true, on, 1, n, no, f, false, off or 0");
  CHECK(
      refusal([] { (void)resolve_sharding_settings(full_shard, {.sharding_strategy = no_shard}, {}, {}); }) ==
      "sharding: sharding is full_shard and fsdp_plugin.sharding_strategy is no_shard; set one of them, or both to the "
      "same value");
}

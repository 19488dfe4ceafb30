// SPDX-License-Identifier: Apache-2.0
// Config files with distributed_type FSDP and DEEPSPEED.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "accelerate/env/config_keys.hpp"
#include "accelerate/env/fsdp_settings.hpp"
#include "accelerate/env/settings.hpp"
#include "tests/env/refusal.hpp"

namespace env = accelerate::env;
using env::FsdpSettings;

namespace {

FsdpSettings settings_of(const std::string& text) {
  return env::weigh_fsdp({}, {}, env::parse_config(text, "f.yaml"), "").settings;
}

std::string refusal(const std::string& text) {
  return testing::refusal([&] { settings_of(text); }).second;
}

std::string deepspeed(const std::string& line) {
  return "distributed_type: DEEPSPEED\ndeepspeed_config:\n  " + line + "\n";
}
std::string fsdp(const std::string& line) { return "distributed_type: FSDP\nfsdp_config:\n  " + line + "\n"; }

}  // namespace

TEST_CASE("a file of Accelerate 1.15 for FSDP1 enables sharded training") {
  CHECK(settings_of("compute_environment: LOCAL_MACHINE\n"
                    "debug: false\n"
                    "distributed_type: FSDP\n"
                    "fsdp_config:\n"
                    "  fsdp_activation_checkpointing: false\n"
                    "  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
                    "  fsdp_backward_prefetch: BACKWARD_PRE\n"
                    "  fsdp_cpu_ram_efficient_loading: true\n"
                    "  fsdp_forward_prefetch: false\n"
                    "  fsdp_min_num_params: 100000000\n"
                    "  fsdp_offload_params: false\n"
                    "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"
                    "  fsdp_state_dict_type: FULL_STATE_DICT\n"
                    "  fsdp_sync_module_states: true\n"
                    "  fsdp_transformer_layer_cls_to_wrap: ''\n"
                    "  fsdp_use_orig_params: true\n"
                    "  fsdp_version: 1\n"
                    "num_processes: 2\n") == FsdpSettings{.use_fsdp = true,
                                                          .reshard_after_forward = false,
                                                          .forward_prefetch = false,
                                                          .min_num_params = 100'000'000,
                                                          .use_orig_params = true,
                                                          .sync_module_states = true,
                                                          .offload_params = false,
                                                          .activation_checkpointing = false,
                                                          .version = 1,
                                                          .cpu_ram_efficient_loading = true,
                                                          .state_dict_type = "FULL_STATE_DICT",
                                                          .backward_prefetch = "BACKWARD_PRE",
                                                          .auto_wrap_policy = "SIZE_BASED_WRAP"});
}

TEST_CASE("a group may be empty, and its keys may lack the prefix") {
  CHECK(settings_of("distributed_type: FSDP\n") == FsdpSettings{.use_fsdp = true});
  CHECK(settings_of("distributed_type: FSDP\nfsdp_config: {}\n") == FsdpSettings{.use_fsdp = true});
  CHECK(settings_of(fsdp("sharding_strategy: 2")) ==
        FsdpSettings{.use_fsdp = true, .sharding_strategy = "SHARD_GRAD_OP"});
  CHECK(settings_of("distributed_type: DEEPSPEED\n") ==
        FsdpSettings{.use_fsdp = true, .sharding_strategy = "SHARD_GRAD_OP"});
}

TEST_CASE("a group of another kind of training is not read") {
  CHECK(settings_of("distributed_type: MULTI_CPU\nfsdp_config: {fsdp_version: 7}\n") == FsdpSettings{});
  const auto config = env::parse_config("distributed_type: FSDP\ndeepspeed_config: {zero_stage: 1}\n", "f.yaml");
  CHECK(env::keys_without_meaning(config.values) == std::vector<std::string>{"deepspeed_config"});
}

TEST_CASE("zero_stage is the sharding strategy with its number") {
  const std::map<std::string, std::string> strategies{
      {"0", "NO_SHARD"}, {"1", "SHARD_OPTIM_OP"}, {"2", "SHARD_GRAD_OP"}, {"3", "FULL_SHARD"}};
  for (const auto& [stage, strategy] : strategies) {
    CHECK(settings_of(deepspeed("zero_stage: " + stage)) ==
          FsdpSettings{.use_fsdp = true, .sharding_strategy = strategy});
  }
  CHECK(refusal(deepspeed("zero_stage: 4")) == "settings: zero_stage in f.yaml is '4', must be an integer, 0 to 3");
}

TEST_CASE("a file of Accelerate for DeepSpeed: accumulation is a setting, disabled keys have no effect") {
  const auto config = env::parse_config(
      "deepspeed_config:\n"
      "  gradient_accumulation_steps: 4\n"
      "  offload_optimizer_device: none\n"
      "  offload_param_device: none\n"
      "  zero3_init_flag: false\n"
      "  zero3_save_16bit_model: true\n"
      "  zero_stage: 3\n"
      "distributed_type: DEEPSPEED\n",
      "f.yaml");
  CHECK(env::weigh({}, {}, config).settings.gradient_accumulation_steps == 4);
  CHECK(env::keys_without_meaning(config.values) ==
        std::vector<std::string>{"deepspeed_config.zero3_save_16bit_model"});
  const auto outer = env::parse_config(
      "gradient_accumulation_steps: 2\ndistributed_type: DEEPSPEED\n"
      "deepspeed_config: {gradient_accumulation_steps: 4}\n",
      "f.yaml");
  CHECK(env::weigh({}, {}, outer).settings.gradient_accumulation_steps == 2);
}

TEST_CASE("offload_param_device of DeepSpeed offloads parameters and optimizer state of full_shard") {
  const FsdpSettings offloaded{.use_fsdp = true, .sharding_strategy = "FULL_SHARD", .offload_params = true};
  CHECK(settings_of(deepspeed("zero_stage: 3\n  offload_param_device: cpu")) == offloaded);
  CHECK(settings_of(deepspeed("offload_optimizer_device: cpu\n  offload_param_device: cpu\n  zero_stage: 3")) ==
        offloaded);
  CHECK(settings_of(deepspeed("zero_stage: 3\n  offload_optimizer_device: none\n  offload_param_device: none")) ==
        FsdpSettings{.use_fsdp = true, .sharding_strategy = "FULL_SHARD"});
  CHECK(refusal(deepspeed("zero_stage: 3\n  offload_optimizer_device: cpu")) ==
        "settings: offload_optimizer_device in f.yaml is cpu, but optimizer state is offloaded "
        "together with the parameters; set offload_param_device to cpu, too");
  CHECK(refusal(deepspeed("zero_stage: 3\n  offload_param_device: nvme")) ==
        "settings: offload_param_device in f.yaml is nvme, but only the memory of the host is "
        "supported; set it to cpu or none");
  for (const std::string stage : {"1", "2"}) {
    CHECK(refusal(deepspeed("offload_param_device: cpu\n  zero_stage: " + stage)) ==
          "settings: offload_param_device in f.yaml is cpu, but zero_stage " + stage +
              " does not offload; set zero_stage to 3 or remove it");
  }
}

TEST_CASE("keys of DeepSpeed that would change the training are refused with the replacement") {
  CHECK(refusal(deepspeed("gradient_clipping: 1.0")) ==
        "settings: gradient_clipping in f.yaml is 1.0, but the program clips; call "
        "accelerator.clip_grad_norm_() and remove it");
  CHECK(refusal(deepspeed("deepspeed_config_file: ds.json")) ==
        "settings: deepspeed_config_file in f.yaml is ds.json, but files of DeepSpeed are not read; "
        "set zero_stage and remove it");
  CHECK(refusal(deepspeed("deepspeed_moe_layer_cls_names: Moe")) ==
        "settings: deepspeed_moe_layer_cls_names in f.yaml is Moe, but all parameters are divided; "
        "remove it");
  for (const std::string key : {"deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"}) {
    CHECK(refusal(deepspeed(key + ": h")) ==
          "settings: " + key +
              " in f.yaml is h, but the hosts of a job are in the file that hostfile names; set hostfile and "
              "remove it");
  }
}

TEST_CASE("unknown and repeated keys of a group are refused") {
  CHECK(refusal(fsdp("fsdp_shading_strategy: 1")) ==
        "settings: f.yaml has the unknown key 'fsdp_shading_strategy' in fsdp_config; did you mean "
        "fsdp_sharding_strategy?");
  CHECK(refusal(fsdp("mine: 1")) == "settings: f.yaml has the unknown key 'mine' in fsdp_config; remove it");
  CHECK(refusal(fsdp("use_fsdp: true")) == "settings: f.yaml has the unknown key 'use_fsdp' in fsdp_config; remove it");
  CHECK(refusal(deepspeed("zero_stag: 1")) ==
        "settings: f.yaml has the unknown key 'zero_stag' in deepspeed_config; did you mean zero_stage?");
  CHECK(refusal("distributed_type: FSDP\nfsdp_config: {version: 1, version: 2}\n") ==
        "settings: f.yaml has version twice in fsdp_config");
  CHECK(refusal("distributed_type: FSDP\nfsdp_config: {version: 1, fsdp_version: 2}\n") ==
        "settings: f.yaml has fsdp_version twice in fsdp_config");
}

TEST_CASE("keys of a group at the top level are refused with the group") {
  CHECK(refusal("use_fsdp: true") == "settings: f.yaml has the key use_fsdp; set distributed_type to FSDP instead");
  CHECK(refusal("fsdp_version: 1") ==
        "settings: f.yaml has fsdp_version at the top level, must be in fsdp_config, with distributed_type FSDP");
  CHECK(
      refusal("zero_stage: 1") ==
      "settings: f.yaml has zero_stage at the top level, must be in deepspeed_config, with distributed_type DEEPSPEED");
}

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/sharding_groups.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/base/closest_match.hpp"
#include "accelerate/env/config_keys.hpp"
#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/parallelism_table.hpp"
#include "accelerate/env/precedence.hpp"

namespace accelerate::env {
namespace {

template <typename... Args>
[[noreturn]] void refuse_group(fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::environment, {}, "settings", format, std::forward<Args>(args)...);
}

[[noreturn]] void refuse_unknown(const std::string& key, const std::string& group,
                                 const std::vector<std::string>& known, const std::string& path) {
  const auto meant = base::closest_match(key, known);
  refuse_group("{} has the unknown key '{}' in {}{}", path, key, group,
               meant ? fmt::format("; did you mean {}?", *meant) : "; remove it");
}

struct DeepSpeedKey {
  std::string_view key;
  /// Replacement, for a key that would change the training or the start of the ranks. Empty for other keys.
  std::string_view instead = "";
};

constexpr std::string_view kHosts =
    "the hosts of a job are in the file that hostfile names; set hostfile and remove it";

constexpr std::array<DeepSpeedKey, 11> kDeepSpeedKeys{
    {{"gradient_clipping", "the program clips; call accelerator.clip_grad_norm_() and remove the key"},
     {"deepspeed_config_file",
      "files of DeepSpeed are not read; write zero_stage into deepspeed_config and remove the key"},
     {"deepspeed_moe_layer_cls_names", "all parameters are divided; remove it"},
     {"deepspeed_hostfile", kHosts},
     {"deepspeed_exclusion_filter", kHosts},
     {"deepspeed_inclusion_filter", kHosts},
     {"deepspeed_multinode_launcher"},
     {"offload_optimizer_nvme_path"},
     {"offload_param_nvme_path"},
     {"zero3_init_flag"},
     {"zero3_save_16bit_model"}}};

constexpr std::string_view kOffloadParameters = "offload_param_device", kOffloadOptimizer = "offload_optimizer_device";

[[noreturn]] void refuse_deepspeed_key(std::string_view key, const std::string& value, std::string_view instead,
                                       const Config& config) {
  refuse_group("{} has {} {} in deepspeed_config, but {}", config.path, key, value, instead);
}

// Whether the key requests what full_shard supports, the memory of the host.
bool is_offloaded(std::string_view key, const ConfigGroup& group, int64_t stage, const Config& config) {
  const auto given = group.find(std::string(key));
  if (given == group.end() || !is_requested({.key = key, .disabled_value = "none"}, given->second)) return false;
  if (given->second != "cpu") {
    refuse_deepspeed_key(key, given->second, "only the memory of the host is supported; set it to cpu or none", config);
  }
  if (stage != 3) {
    const auto instead = fmt::format("zero_stage {} does not offload; set zero_stage to 3 or remove the key", stage);
    refuse_deepspeed_key(key, given->second, instead, config);
  }
  return true;
}

// Parameters and optimizer state are offloaded together, as fsdp_offload_params has it.
void add_deepspeed_offload(const ConfigGroup& group, int64_t stage, Config& config) {
  const bool parameters = is_offloaded(kOffloadParameters, group, stage, config);
  const bool optimizer = is_offloaded(kOffloadOptimizer, group, stage, config);
  if (optimizer && !parameters) {
    refuse_deepspeed_key(
        kOffloadOptimizer, "cpu",
        "optimizer state is offloaded together with the parameters; set offload_param_device to cpu, too", config);
  }
  if (parameters) config.values.emplace("fsdp_offload_params", "true");
}

void add_deepspeed_key(const std::string& key, const std::string& value, Config& config) {
  const auto* row =
      std::find_if(kDeepSpeedKeys.begin(), kDeepSpeedKeys.end(), [&](const auto& each) { return each.key == key; });
  if (row == kDeepSpeedKeys.end()) {
    std::vector<std::string> known{"zero_stage", "gradient_accumulation_steps", std::string(kOffloadParameters),
                                   std::string(kOffloadOptimizer)};
    for (const auto& each : kDeepSpeedKeys) known.emplace_back(each.key);
    refuse_unknown(key, "deepspeed_config", known, config.path);
  }
  if (!is_requested({.key = row->key, .disabled_value = "none"}, value)) return;
  if (!row->instead.empty()) {
    refuse_deepspeed_key(key, value, row->instead, config);
  }
  config.values.emplace("deepspeed_config." + key, value);
}

}  // namespace

void add_fsdp_config(const ConfigGroup& group, Config& config) {
  std::vector<std::string> known;
  for_each_fsdp_setting([&](const auto& row) {
    if (row.key.starts_with("fsdp_")) known.emplace_back(row.key);
  });
  config.values.emplace("use_fsdp", "true");
  for (const auto& [given, value] : group) {
    const std::string key = given.starts_with("fsdp_") ? given : "fsdp_" + given;
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse_unknown(given, "fsdp_config", known, config.path);
    }
    if (!config.values.emplace(key, value).second) refuse_group("{} has {} twice in fsdp_config", config.path, key);
  }
}

void add_parallelism_config(const ConfigGroup& group, Config& config) {
  constexpr std::string_view prefix = "parallelism_config_";
  // Options of context and sequence parallelism, which `accelerate config` writes only for sizes above 1.
  constexpr std::array<std::string_view, 6> unused{
      "cp_backend",    "cp_comm_strategy",          "sp_backend",
      "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"};
  std::vector<std::string> known;
  for_each_parallelism_setting([&](const auto& row) { known.emplace_back(row.key); });
  config.values.emplace("use_parallelism_config", "true");
  for (const auto& [given, value] : group) {
    const std::string key = given.starts_with(prefix) ? given : std::string(prefix) + given;
    if (std::find(unused.begin(), unused.end(), key.substr(prefix.size())) != unused.end()) {
      config.values.emplace("parallelism_config." + key, value);
    } else if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse_unknown(given, "parallelism_config", known, config.path);
    } else if (!config.values.emplace(key, value).second) {
      refuse_group("{} has {} twice in parallelism_config", config.path, key);
    }
  }
}

void add_deepspeed_config(const ConfigGroup& group, Config& config) {
  config.values.emplace("use_fsdp", "true");
  int64_t stage = kDefaultZeroStage;
  for (const auto& [key, value] : group) {
    if (key == "zero_stage") {
      const auto number = kZeroStage.parse(value);
      if (!number) refuse_group("zero_stage in {} is '{}', must be {}", config.path, value, kZeroStage.expected());
      stage = *number;
    } else if (key == "gradient_accumulation_steps") {
      config.values.emplace(key, value);
    } else if (key != kOffloadParameters && key != kOffloadOptimizer) {
      add_deepspeed_key(key, value, config);
    }
  }
  add_deepspeed_offload(group, stage, config);
  config.values.emplace("fsdp_sharding_strategy", strategy_of_zero_stage(stage));
}

}  // namespace accelerate::env

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/deepspeed.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/env/config_keys.hpp"
#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/precedence.hpp"

namespace accelerate::env {
namespace {

struct DeepSpeedKey {
  std::string_view key;
  /// Replacement, for a key that would change the training or the start of the ranks. Empty for other keys.
  std::string_view instead = "";
};

constexpr std::string_view kHosts =
    "the hosts of a job are in the file that hostfile names; set hostfile and remove it";

constexpr std::array<DeepSpeedKey, 11> kOtherKeys{
    {{"gradient_clipping", "the program clips; call accelerator.clip_grad_norm_() and remove it"},
     {"deepspeed_config_file", "files of DeepSpeed are not read; set zero_stage and remove it"},
     {"deepspeed_moe_layer_cls_names", "all parameters are divided; remove it"},
     {"deepspeed_hostfile", kHosts},
     {"deepspeed_exclusion_filter", kHosts},
     {"deepspeed_inclusion_filter", kHosts},
     {"deepspeed_multinode_launcher"},
     {"offload_optimizer_nvme_path"},
     {"offload_param_nvme_path"},
     {"zero3_init_flag"},
     {"zero3_save_16bit_model"}}};

constexpr std::string_view kStage = "zero_stage";
constexpr std::string_view kOffloadParameters = "offload_param_device", kOffloadOptimizer = "offload_optimizer_device";

/// Variables of Hugging Face Accelerate's launcher.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kVariables{
    {{kStage, "ACCELERATE_DEEPSPEED_ZERO_STAGE"},
     {kOffloadParameters, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"},
     {kOffloadOptimizer, "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"},
     {"gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING"},
     {"deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE"},
     {"deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"}}};
/// The part of a settings row that read_setting() needs.
struct UseRow {
  TrueOrFalse type{};
  bool first_of_list = false;
};
constexpr std::string_view kUseDeepSpeed = "ACCELERATE_USE_DEEPSPEED", kUseFsdp = "ACCELERATE_USE_FSDP";

std::string variable_of(std::string_view key) {
  const auto* row =
      std::find_if(kVariables.begin(), kVariables.end(), [&](const auto& each) { return each.first == key; });
  return std::string(row->second);
}

bool is_given(std::string_view key, const std::string& value) {
  return is_requested({.key = key, .disabled_value = "none"}, value);
}

class DeepSpeedTranslation {
 public:
  DeepSpeedTranslation(const DeepSpeedOptions& options, const DeepSpeedKeyName& name)
      : options_(options), name_(name) {}

  std::map<std::string, std::string> run() const {
    for (const auto& row : kOtherKeys) {
      const std::string value = value_of(row.key);
      if (!row.instead.empty() && is_given(row.key, value)) refuse(row.key, row.instead);
    }
    const int64_t stage = zero_stage();
    std::map<std::string, std::string> settings{{"use_fsdp", "true"},
                                                {"fsdp_sharding_strategy", std::string(strategy_of_zero_stage(stage))}};
    // Parameters and optimizer state are offloaded together, as fsdp_offload_params has it.
    const bool parameters = is_offloaded(kOffloadParameters, stage);
    if (is_offloaded(kOffloadOptimizer, stage) && !parameters) {
      refuse(kOffloadOptimizer,
             "optimizer state is offloaded together with the parameters; set offload_param_device to cpu, too");
    }
    if (parameters) settings.emplace("fsdp_offload_params", "true");
    return settings;
  }

 private:
  [[nodiscard]] std::string value_of(std::string_view key) const {
    const auto found = options_.find(std::string(key));
    return found == options_.end() ? std::string() : found->second;
  }

  [[noreturn]] void refuse(std::string_view key, std::string_view instead) const {
    base::fail(ErrorKind::environment, {}, "settings", "{} is {}, but {}", name_(key), value_of(key), instead);
  }

  [[nodiscard]] int64_t zero_stage() const {
    const std::string text = value_of(kStage);
    if (text.empty()) return kDefaultZeroStage;
    const auto number = kZeroStage.parse(text);
    if (!number) {
      base::fail(ErrorKind::environment, {}, "settings", "{} is '{}', must be {}", name_(kStage), text,
                 kZeroStage.expected());
    }
    return *number;
  }

  // Returns true if the key requests the memory of the host, which only zero_stage 3 (full_shard) supports.
  [[nodiscard]] bool is_offloaded(std::string_view key, int64_t stage) const {
    const std::string value = value_of(key);
    if (!is_given(key, value)) return false;
    if (value != "cpu") refuse(key, "only the memory of the host is supported; set it to cpu or none");
    if (stage != 3) {
      refuse(key, fmt::format("zero_stage {} does not offload; set zero_stage to 3 or remove it", stage));
    }
    return true;
  }

  const DeepSpeedOptions& options_;
  const DeepSpeedKeyName& name_;
};

}  // namespace

std::vector<std::string> deepspeed_keys() {
  std::vector<std::string> keys{std::string(kStage), std::string(kOffloadParameters), std::string(kOffloadOptimizer)};
  for (const auto& row : kOtherKeys) keys.emplace_back(row.key);
  return keys;
}

std::vector<std::string> deepspeed_keys_without_effect(const DeepSpeedOptions& options) {
  std::vector<std::string> keys;
  for (const auto& row : kOtherKeys) {
    const auto found = options.find(std::string(row.key));
    if (found != options.end() && is_given(row.key, found->second)) keys.push_back(found->first);
  }
  return keys;
}

std::map<std::string, std::string> translate_deepspeed(const DeepSpeedOptions& options, const DeepSpeedKeyName& name) {
  return DeepSpeedTranslation(options, name).run();
}

DeepSpeedVariables deepspeed_variables(const Variables& variables) {
  const std::string use(kUseDeepSpeed);
  const auto text = find(variables, use);
  if (!text || find(variables, std::string(kUseFsdp)) || !read_setting(UseRow(), *text, use)) {
    return {};
  }
  DeepSpeedOptions options;
  for (const auto& [key, variable] : kVariables) {
    if (const auto value = find(variables, std::string(variable))) options.emplace(key, *value);
  }
  auto settings = translate_deepspeed(options, variable_of);
  DeepSpeedVariables result{.names = {{"use_fsdp", use},
                                      {"fsdp_sharding_strategy", variable_of(kStage)},
                                      {"fsdp_offload_params", variable_of(kOffloadParameters)}},
                            .values = {}};
  for (const auto& [key, name] : result.names) {
    const auto value = settings.find(std::string(key));
    if (value != settings.end()) result.values.emplace(name, value->second);
  }
  return result;
}

}  // namespace accelerate::env

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/config_keys.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/settings_table.hpp"

namespace accelerate::env {
namespace {

struct UnsupportedTraining {
  std::string_view type;  ///< prefix of distributed_type
  std::string_view instead;
};

/// In order of priority: the first kind with a matching type is reported.
constexpr std::array<UnsupportedTraining, 4> kUnsupportedTrainings{{
    {"MEGATRON_LM", "Megatron-LM is a Python library; MULTI_GPU with tp_size in parallelism_config is tensor parallel"},
    {"XLA", "LibTorch does not support TPUs; MULTI_GPU and MULTI_CPU are data parallel"},
    {"TPU", "LibTorch does not support TPUs; MULTI_GPU and MULTI_CPU are data parallel"},
    {"MULTI_", "several devices of this kind are not supported; MULTI_GPU and MULTI_CPU are"},
}};

const UnsupportedTraining* unsupported_training(std::string_view type) {
  const auto* found = std::find_if(kUnsupportedTrainings.begin(), kUnsupportedTrainings.end(),
                                   [&](const auto& each) { return type.starts_with(each.type); });
  return found == kUnsupportedTrainings.end() ? nullptr : found;
}

constexpr std::string_view kTypes = "NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED";

bool is_ours(std::string_view type) {
  constexpr std::array<std::string_view, 5> types{"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED"};
  return std::find(types.begin(), types.end(), type) != types.end();
}

/// Suggests "NO" for "no", which users and YAML tools write.
std::string effective_distributed_type(std::string type) {
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  return is_ours(type) ? "; did you mean " + type + "?" : "";
}

/// A file with options of another kind of training but without a distributed_type is refused, because data parallel
/// training would silently replace the configured one. With another distributed_type, such a group has no meaning.
void check_groups(const std::map<std::string, std::string>& values, const std::string& path) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> groups{
      {{"fsdp_config", "FSDP"}, {"deepspeed_config", "DEEPSPEED"}, {"megatron_lm_config", "MEGATRON_LM"}}};
  for (const auto& [key, type] : groups) {
    const auto found = values.find(std::string(key));
    if (found == values.end() || !is_requested({.key = key}, found->second)) continue;
    const auto* other = unsupported_training(type);
    base::fail(ErrorKind::environment, {}, "settings", "{} has {} and no distributed_type, {}", path, key,
               other == nullptr ? fmt::format("which must be {}; add it, or remove {}", type, key)
                                : "but " + std::string(other->instead));
  }
}

}  // namespace

bool is_requested(const ForeignKey& key, const std::string& value) {
  const auto flag = parse_bool(value);
  return !value.empty() && value != key.disabled_value && value != "NO" && !(flag && !*flag);
}

const std::vector<std::string_view>& launcher_keys() {
  static const std::vector<std::string_view> keys{"num_processes",
                                                  "multi_gpu",
                                                  "hosts",
                                                  "num_machines",
                                                  "machine_rank",
                                                  "main_process_ip",
                                                  "main_process_port",
                                                  "same_network",
                                                  "gpu_ids",
                                                  "rdzv_backend",
                                                  "runner",
                                                  "hostfile",
                                                  "enable_cpu_affinity",
                                                  "mpirun_hostfile",
                                                  "grace_time",
                                                  "max_restarts",
                                                  "resume_code",
                                                  "ranks_per_machine",
                                                  "role",
                                                  "monitor_interval",
                                                  "log_dir",
                                                  "tee",
                                                  "redirects",
                                                  "local_ranks_filter",
                                                  "label",
                                                  "quiet",
                                                  "hang_timeout"};
  return keys;
}

const std::vector<ForeignKey>& foreign_keys() {
  static const std::vector<ForeignKey> keys{{.key = "use_cpu", .setting = "cpu"},
                                            {.key = "fp16", .setting = "mixed_precision"},
                                            {.key = "compute_environment", .disabled_value = "LOCAL_MACHINE"},
                                            {.key = "distributed_type"},
                                            {.key = "main_training_function", .disabled_value = "main"},
                                            {.key = "downcast_bf16"},
                                            {.key = "dynamo_backend"},
                                            {.key = "dynamo_config"},
                                            {.key = "fp8_config"},
                                            {.key = "fsdp_config"},
                                            {.key = "deepspeed_config"},
                                            {.key = "megatron_lm_config"},
                                            {.key = "parallelism_config"},
                                            {.key = "tp_config"},
                                            {.key = "ipex_config"},
                                            {.key = "mpirun_config"},
                                            {.key = "mpirun_ccl"},
                                            {.key = "tpu_name"},
                                            {.key = "tpu_zone"},
                                            {.key = "tpu_use_cluster"},
                                            {.key = "tpu_use_sudo"},
                                            {.key = "tpu_vm"},
                                            {.key = "tpu_env"},
                                            {.key = "command"},
                                            {.key = "commands"},
                                            {.key = "command_file"}};
  return keys;
}

std::vector<std::string> known_keys() {
  std::vector<std::string> known;
  for_each_setting([&](const auto& row) { known.emplace_back(row.key); });
  for (const auto key : launcher_keys()) known.emplace_back(key);
  for (const auto& foreign : foreign_keys()) known.emplace_back(foreign.key);
  return known;
}

std::vector<std::string> keys_without_meaning(const std::map<std::string, std::string>& values) {
  std::vector<std::string> keys;
  for (const auto& foreign : foreign_keys()) {
    const auto found = values.find(std::string(foreign.key));
    if (foreign.key == "distributed_type" || found == values.end()) continue;
    if (is_requested(foreign, found->second)) keys.emplace_back(foreign.key);
  }
  for (const auto& entry : values) {
    if (entry.first.find('.') != std::string::npos) keys.emplace_back(entry.first);
  }
  return keys;
}

void check_distributed_type(const std::map<std::string, std::string>& values, const std::string& path) {
  const auto environment = values.find("compute_environment");
  if (environment != values.end() && environment->second == "AMAZON_SAGEMAKER") {
    base::fail(ErrorKind::environment, {}, "settings",
               "{} has compute_environment AMAZON_SAGEMAKER, which only Python supports; use LOCAL_MACHINE", path);
  }
  const auto found = values.find("distributed_type");
  if (found == values.end()) return check_groups(values, path);
  const std::string& type = found->second;
  if (is_ours(type)) return;
  const auto* other = unsupported_training(type);
  base::fail(ErrorKind::environment, {}, "settings", "{} has distributed_type {}, but {}", path, type,
             other == nullptr ? fmt::format("it must be {}{}", kTypes, effective_distributed_type(type))
                              : std::string(other->instead));
}

}  // namespace accelerate::env

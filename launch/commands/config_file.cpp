// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/config_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/env/yaml_document.hpp"

namespace accelerate::launch {
namespace {

template <typename... Args>
[[noreturn]] void refuse_config(fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::environment, {}, "accelerate_config", format, std::forward<Args>(args)...);
}

// The fields of Accelerate's ClusterConfig (accelerate/commands/config/config_args.py).
const std::set<std::string>& keys_of_accelerate() {
  static const std::set<std::string> keys{
      "compute_environment", "distributed_type", "mixed_precision", "use_cpu",       "debug",
      "num_processes",       "machine_rank",     "num_machines",    "gpu_ids",       "main_process_ip",
      "main_process_port",   "rdzv_backend",     "same_network",    "fp8_config",    "main_training_function",
      "enable_cpu_affinity", "deepspeed_config", "fsdp_config",     "mpirun_config", "parallelism_config",
      "megatron_lm_config",  "downcast_bf16",    "tpu_name",        "tpu_zone",      "tpu_use_cluster",
      "tpu_use_sudo",        "command_file",     "commands",        "tpu_vm",        "tpu_env",
      "dynamo_config"};
  return keys;
}

YAML::Node quoted(const std::string& text) {
  YAML::Node node(text);
  node.SetTag("!");  // the parser marks quoted scalars in the same way
  return node;
}

void emit(YAML::Emitter& out, const YAML::Node& node) {
  if (node.IsMap()) {
    std::map<std::string, YAML::Node> sorted;
    for (const auto& entry : node) sorted.emplace(entry.first.Scalar(), entry.second);
    out << YAML::BeginMap;
    for (const auto& [key, value] : sorted) {
      out << YAML::Key << key << YAML::Value;
      emit(out, value);
    }
    out << YAML::EndMap;
  } else if (node.IsSequence()) {
    out << YAML::BeginSeq;
    for (const auto& item : node) emit(out, item);
    out << YAML::EndSeq;
  } else if (node.IsNull()) {
    out << YAML::Null;
  } else if (node.Tag() == "!") {
    out << YAML::SingleQuoted << node.Scalar();
  } else {
    out << node.Scalar();
  }
}

std::string emit_yaml(const YAML::Node& map) {
  YAML::Emitter out;
  emit(out, map);
  return std::string(out.c_str()) + "\n";
}

YAML::Node node_of(const ClusterConfig& config) {
  YAML::Node map;
  map["compute_environment"] = "LOCAL_MACHINE";
  map["debug"] = config.debug;
  map["distributed_type"] = quoted(config.sharding_strategy ? "FSDP" : config.distributed_type);
  map["enable_cpu_affinity"] = config.enable_cpu_affinity;
  map["machine_rank"] = config.machine_rank;
  map["main_training_function"] = "main";
  map["mixed_precision"] = quoted(config.mixed_precision);
  map["num_machines"] = config.num_machines;
  map["num_processes"] = config.num_processes;
  map["rdzv_backend"] = "static";
  map["same_network"] = config.same_network;
  map["use_cpu"] = config.use_cpu;
  if (config.main_process_ip) map["main_process_ip"] = quoted(*config.main_process_ip);
  if (config.main_process_port) map["main_process_port"] = *config.main_process_port;
  if (config.gpu_ids) map["gpu_ids"] = quoted(*config.gpu_ids);
  if (config.mpirun_hostfile) map["mpirun_config"]["mpirun_hostfile"] = quoted(*config.mpirun_hostfile);
  if (config.sharding_strategy) {
    map["fsdp_config"]["fsdp_sharding_strategy"] = quoted(*config.sharding_strategy);
    map["fsdp_config"]["fsdp_version"] = 1;  // in version 2 Accelerate has no strategies
  }
  return map;
}

// Refuses duplicate keys, because readers differ: PyYAML uses the last one, yaml-cpp the first one.
void check_keys(const YAML::Node& node, const std::string& path) {
  std::set<std::string> keys;
  for (const auto& entry : node) {
    if (!node.IsMap()) continue;
    if (!entry.first.IsScalar()) refuse_config("{} has a key that is a list or a map", path);
    if (!keys.insert(entry.first.Scalar()).second) {
      refuse_config("{} line {} has the key {} twice; remove one of them", path, entry.first.Mark().line + 1,
                    entry.first.Scalar());
    }
    check_keys(entry.second, path);
  }
}

YAML::Node parsed_map(std::string_view text, const std::string& path) {
  const YAML::Node document = env::yaml_document(std::string(text), path, "accelerate_config");
  if (!document.IsMap()) refuse_config("{} must contain lines like 'num_processes: 2'", path);
  check_keys(document, path);
  return document;
}

// Renames keys of older versions.
void rename_old_keys(YAML::Node& map) {
  if (map["fp16"]) {
    if (!map["mixed_precision"]) map["mixed_precision"] = quoted(map["fp16"].as<bool>(false) ? "fp16" : "no");
    map.remove("fp16");
  }
  if (map["dynamo_backend"]) {
    const auto backend = map["dynamo_backend"].Scalar();
    if (backend != "NO" && backend != "no" && !map["dynamo_config"]) {
      map["dynamo_config"]["dynamo_backend"] = quoted(backend);
    }
    map.remove("dynamo_backend");
  }
}

}  // namespace

ClusterConfig default_config(const Machine& machine, std::string_view mixed_precision) {
  return {.distributed_type = machine.gpus > 1 ? "MULTI_GPU" : "NO",
          .mixed_precision = std::string(mixed_precision),
          .use_cpu = machine.gpus == 0,
          .num_processes = std::max<int64_t>(1, machine.gpus)};
}

std::string yaml_of(const ClusterConfig& config) { return emit_yaml(node_of(config)); }

std::string updated_yaml(std::string_view text, const std::string& path) {
  YAML::Node map = parsed_map(text, path);
  if (!map["distributed_type"]) {
    refuse_config("{} has no distributed_type; accelerate_config writes a file that has", path);
  }
  rename_old_keys(map);
  std::vector<std::string> unknown;
  for (const auto& entry : map) {
    if (!keys_of_accelerate().contains(entry.first.Scalar())) unknown.push_back(entry.first.Scalar());
  }
  if (!unknown.empty()) {
    refuse_config("{} has keys that Accelerate does not support ({}); remove them", path, fmt::join(unknown, ", "));
  }
  for (const auto& entry : node_of({})) {
    const std::string key = entry.first.Scalar();
    // Accelerate's own default for a distributed job is -1: Slurm supplies the number.
    const bool unsaid = key == "num_processes" && map["distributed_type"].Scalar() != "NO";
    if (!map[key]) map[key] = unsaid ? YAML::Node(-1) : entry.second;
  }
  return emit_yaml(map);
}

std::filesystem::path default_config_path(const env::Variables& variables) {
  const auto given = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  if (!given("ACCELERATE_CONFIG_FILE").empty()) return given("ACCELERATE_CONFIG_FILE");
  std::filesystem::path home = given("HF_HOME");
  if (home.empty()) {
    const std::string cache = given("XDG_CACHE_HOME");
    home = (cache.empty() ? std::filesystem::path(given("HOME")) / ".cache" : std::filesystem::path(cache)) /
           "huggingface";
  }
  return home / "accelerate" / "default_config.yaml";
}

}  // namespace accelerate::launch

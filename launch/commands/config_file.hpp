// SPDX-License-Identifier: Apache-2.0
// The YAML file that `accelerate config` of Hugging Face Accelerate 1.15 writes and both launchers read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/env/process_env.hpp"
#include "launch/plan/machine.hpp"

namespace accelerate::launch {

/// The keys for data-parallel and sharded training; members have the names of the keys.
struct ClusterConfig {
  std::string distributed_type = "NO";  ///< "NO", "MULTI_CPU", "MULTI_GPU"
  std::string mixed_precision = "no";
  bool use_cpu = false, debug = false, enable_cpu_affinity = false, same_network = true;
  int64_t num_processes = 1, num_machines = 1, machine_rank = 0;
  std::optional<std::string> main_process_ip{};
  std::optional<int64_t> main_process_port{};
  std::optional<std::string> gpu_ids{};
  std::optional<std::string> mpirun_hostfile{};
  /// Name of fsdp_sharding_strategy. If set, the file has FSDP in place of distributed_type.
  std::optional<std::string> sharding_strategy{};

  bool operator==(const ClusterConfig&) const = default;
};

/// One rank per GPU, or one CPU rank without GPUs.
ClusterConfig default_config(const Machine& machine, std::string_view mixed_precision);

/// Writes only keys that Accelerate 1.15 has, in its order. Texts such as no and NO are quoted, because YAML 1.1 reads
/// them as false.
std::string yaml_of(const ClusterConfig& config);

/// Converts an older config file to today's keys. Existing values are kept, missing keys get their defaults, and fp16
/// and dynamo_backend are replaced by their successors.
///
/// \param path  Path for error messages.
/// \throws Error (environment) if the text is not a config file, or for keys unknown to Accelerate 1.15, by name.
std::string updated_yaml(std::string_view text, const std::string& path);

/// Default path of both launchers: $ACCELERATE_CONFIG_FILE, otherwise accelerate/default_config.yaml in $HF_HOME,
/// $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface.
std::filesystem::path default_config_path(const env::Variables& variables);

}  // namespace accelerate::launch

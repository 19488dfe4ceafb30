// SPDX-License-Identifier: Apache-2.0
// Settings from code, command line, environment variable or config file, in order of precedence. settings_table.hpp
// defines their names, checks and help texts.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/env/memory_format.hpp"
#include "accelerate/env/precision.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::env {

/// Settings from code or the command line. Unset means "not given", which differs from "given as the default".
struct GivenSettings {
  std::optional<int64_t> gradient_accumulation_steps{};
  std::optional<Precision> mixed_precision{};
  std::optional<bool> cpu{};
  std::optional<std::string> backend{};
  std::optional<std::chrono::seconds> timeout{};
  std::optional<bool> debug{};
  std::optional<std::string> device{};
  std::optional<int64_t> threads_per_rank{};
  std::optional<bool> allow_shared_gpus{};
  std::optional<MemoryFormat> memory_format{};
  std::optional<Float32MatmulPrecision> float32_matmul_precision{};
  std::optional<bool> cudnn_benchmark{};

  bool operator==(const GivenSettings&) const = default;
};

/// The CPU, or an accelerator by LibTorch's name.
struct DeviceName {
  std::string type = "cpu";
  std::optional<int64_t> index{};  ///< index of the accelerator; if unset, the local rank

  [[nodiscard]] bool is_cpu() const { return type == "cpu"; }
  [[nodiscard]] std::string str() const { return index ? type + ":" + std::to_string(*index) : type; }
  bool operator==(const DeviceName&) const = default;
};

/// Resolved settings. The initial values are the defaults.
struct Settings {
  /// Micro-batches per optimizer step, at least 1. ACCELERATE_GRADIENT_ACCUMULATION_STEPS
  int64_t gradient_accumulation_steps = 1;
  /// Compute precision of forward and backward. ACCELERATE_MIXED_PRECISION
  Precision mixed_precision = Precision::no;
  /// If true, the CPU is used even if there is a GPU. ACCELERATE_USE_CPU
  bool cpu = false;
  /// CPU backend, "mpi" or "gloo". If unset, comm chooses it. ACCELERATE_BACKEND
  std::optional<std::string> backend{};
  /// Time limit of a collective, 1 s to 1000000000 s. ACCELERATE_TIMEOUT, in seconds
  std::chrono::seconds timeout{600};
  /// If true, every collective is compared across the ranks. ACCELERATE_DEBUG_MODE
  bool debug = false;
  /// Device: cpu, or an accelerator's name with or without :N. If unset, it is chosen by local rank.
  /// ACCELERATE_TORCH_DEVICE
  std::optional<DeviceName> device{};
  /// LibTorch threads of this rank, 1 to 65536. If unset, physical cores divided by local ranks. OMP_NUM_THREADS
  std::optional<int64_t> threads_per_rank{};
  /// If true, more local ranks than GPUs are allowed; the GPUs are assigned round-robin. ACCELERATE_ALLOW_SHARED_GPUS
  bool allow_shared_gpus = false;
  /// Memory format of prepared modules and of batches. ACCELERATE_MEMORY_FORMAT
  MemoryFormat memory_format = MemoryFormat::contiguous;
  /// Precision of float32 matrix products in the process. If unset, LibTorch's setting is not changed.
  /// ACCELERATE_FLOAT32_MATMUL_PRECISION
  std::optional<Float32MatmulPrecision> float32_matmul_precision{};
  /// cuDNN's benchmark mode in the process. If unset, LibTorch's setting is not changed. ACCELERATE_CUDNN_BENCHMARK
  std::optional<bool> cudnn_benchmark{};

  bool operator==(const Settings&) const = default;
};

/// Settings and values of a config file, as text.
struct Config {
  std::string path{};
  std::map<std::string, std::string> values{};
};

/// Parses YAML of one level, "cpu: true". A key without a value counts as not given.
/// \throws Error (environment) for invalid YAML and for an unknown key, with the known keys.
Config parse_config(std::string_view text, const std::string& path);

/// Reads the file that ACCELERATE_CONFIG_FILE names, or returns an empty config if the variable is unset.
/// \throws Error (io) if the file cannot be read.
Config read_config(const Variables& variables);

/// The resolved settings, and one sentence for every overridden value that differs.
struct Resolution {
  Settings settings{};
  std::vector<std::string> conflicts{};
};

/// Precedence of every setting: code > environment > config file > default. A GPU in `device` and `cpu` exclude each
/// other: the stronger source takes precedence, and `cpu` does within one source. Pure function.
///
/// \param given_by  Name of the source of `from_code` for messages.
/// \throws Error (usage) for an invalid value from code; Error (environment) for an invalid variable or config value,
///   with its source.
Resolution weigh(const GivenSettings& from_code, const Variables& variables, const Config& config,
                 std::string_view given_by = "the code");

/// As weigh(); in addition every conflict is logged once per process as a warning on rank 0.
///
/// \throws as weigh().
Settings resolve_settings(const GivenSettings& from_code, const Variables& variables, const Config& config,
                          const RankContext& place = {});

}  // namespace accelerate::env

// SPDX-License-Identifier: Apache-2.0
// Properties of this machine, determined without a GPU library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"

namespace accelerate::launch {

struct Machine {
  int64_t gpus = 0;         ///< GPUs visible to this job
  int64_t usable_cpus = 1;  ///< logical processors on which this process may run
  /// Processor numbers by NUMA node; processors that share a core are neighbours.
  std::vector<std::vector<int>> processors{};

  bool operator==(const Machine&) const = default;
};

/// Returns the number of GPUs that a CUDA program would see.
///
/// \param devices  Names in /dev ("nvidia0", "nvidiactl", ...).
/// \param visible  CUDA_VISIBLE_DEVICES. If unset, all GPUs are visible. As in CUDA, the list ends at the first entry
///                 that names no device, so an empty list or one that starts with -1 hides all GPUs.
int64_t count_gpus(const std::vector<std::string>& devices, const std::optional<std::string>& visible);

/// Parses "0-3,8". Returns an empty list for any other text.
std::vector<int> parse_processors(std::string_view list);

/// Reads /dev, /sys and this process's affinity mask.
///
/// \param gpus  CUDA_VISIBLE_DEVICES of the ranks. If unset, the value of this process.
Machine this_machine(const env::Variables& variables, const std::optional<std::string>& gpus = {});

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, as nvidia-smi lists them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::profile {

struct DeviceFacts {
  int64_t index = 0;
  std::string name{};                       ///< "NVIDIA H100 80GB HBM3"
  std::string uuid{};                       ///< "GPU-..."; empty where it is not known
  int64_t total_bytes = 0, used_bytes = 0;  ///< by all processes
  std::optional<int64_t> utilization{};     ///< percent of the last second or so in which a kernel ran
  std::optional<int64_t> temperature{};     ///< degrees Celsius
};

/// All GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says, by NVIDIA's management library, which is loaded now.
/// Where there is none, what LibTorch knows of its accelerator's devices; where that has none, nothing. Never throws
/// for what is not there.
[[nodiscard]] std::vector<DeviceFacts> devices();

/// The first half of it: by a library of that name; none where it cannot be loaded or says no.
[[nodiscard]] std::optional<std::vector<DeviceFacts>> devices_by_nvml(const std::string& library);

/// A line for each, under a heading.
[[nodiscard]] std::string device_table(const std::vector<DeviceFacts>& devices);

}  // namespace accelerate::profile

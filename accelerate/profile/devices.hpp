// SPDX-License-Identifier: Apache-2.0
// Lists the GPUs of this machine, as nvidia-smi does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::profile {

struct DeviceFacts {
  int64_t index = 0;
  std::string name{};                       ///< "NVIDIA H100 80GB HBM3"
  std::string uuid{};                       ///< "GPU-..."; empty if unknown
  int64_t total_bytes = 0, used_bytes = 0;  ///< used by all processes together
  std::optional<int64_t> utilization{};     ///< percent of about the last second in which a kernel ran
  std::optional<int64_t> temperature{};     ///< degrees Celsius
};

/// Returns all GPUs of the machine, regardless of CUDA_VISIBLE_DEVICES, through NVIDIA's management library, which is
/// loaded on demand. Without that library, returns the devices that LibTorch reports, which may be none. Never throws
/// because of missing components.
[[nodiscard]] std::vector<DeviceFacts> devices();

/// Uses the management library of that name. Returns nothing if it cannot be loaded or fails.
[[nodiscard]] std::optional<std::vector<DeviceFacts>> devices_by_nvml(const std::string& library);

/// Returns a table with a heading and one line per device.
[[nodiscard]] std::string device_table(const std::vector<DeviceFacts>& devices);

}  // namespace accelerate::profile

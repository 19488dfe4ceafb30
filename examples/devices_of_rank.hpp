// SPDX-License-Identifier: Apache-2.0
// Assigns several devices to each rank of a machine, without overlap.
#pragma once

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

/// Returns the rank's own device, then every device at a distance of `ranks`: for 2 ranks with 2 devices each, 0 and 2,
/// 1 and 3. On the CPU, returns the same number of CPU devices (threads).
///
/// \param own      The accelerator's device; on local rank r the device with index r.
/// \param count    Devices per rank.
/// \param ranks    Ranks on this machine.
/// \param visible  Visible devices of this type on this machine.
/// \throws std::invalid_argument if there are fewer devices than all ranks need.
inline std::vector<torch::Device> devices_of_rank(torch::Device own, int64_t count, int64_t ranks, int64_t visible) {
  if (own.is_cpu()) return std::vector<torch::Device>(static_cast<size_t>(count), own);
  if (count > 1 && count * ranks > visible) {
    throw std::invalid_argument(
        fmt::format("--num_devices is {} for each of {} rank{} of this machine, which has {} {} "
                    "device{}; give at most {}",
                    count, ranks, ranks == 1 ? "" : "s", visible, c10::DeviceTypeName(own.type(), /*lower_case=*/true),
                    visible == 1 ? "" : "s", std::max<int64_t>(visible / ranks, 1)));
  }
  std::vector<torch::Device> devices;
  for (int64_t i = 0; i < count; ++i) {
    devices.emplace_back(own.type(), static_cast<c10::DeviceIndex>(own.index() + i * ranks));
  }
  return devices;
}

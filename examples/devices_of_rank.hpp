// SPDX-License-Identifier: Apache-2.0
// Several devices for each of several ranks of a machine, so that no two have the same.
#pragma once

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

/// The rank's own device, then every one at a distance of `ranks`: of 2 ranks with 2 devices each, 0 and 2, 1 and 3. On
/// the CPU as many threads.
///
/// own       the accelerator's, of rank r of the machine number r
/// count     devices of each rank
/// ranks     of this machine
/// visible   devices of this machine, of that type
///
/// Throws std::invalid_argument where there are fewer than all ranks ask for.
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

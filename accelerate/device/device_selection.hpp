// SPDX-License-Identifier: Apache-2.0
// Selects the device of a rank.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::device {

/// Accelerator type of this process and number of its devices. LibTorch supports one accelerator type per process.
struct AcceleratorType {
  c10::DeviceType type = c10::DeviceType::CUDA;
  int64_t count = 0;  ///< visible devices of that type

  bool operator==(const AcceleratorType&) const = default;
};

/// Returns the accelerator type of this process: CUDA, XPU, or a vendor's own. The count is 0 without a driver or in a
/// CPU-only build. Never throws.
AcceleratorType accelerator() noexcept;

/// Returns exactly settings.device if given; otherwise the CPU if it is requested or there is no accelerator; otherwise
/// the accelerator device of the local rank. A device name without an index also selects the local rank's device. Pure
/// function.
///
/// \throws Error (device) for a device that does not exist, and for more local ranks than devices unless
///         settings.allow_shared_gpus is set, which assigns the devices round-robin.
c10::Device select_device(const env::ProcessEnv& process, const env::Settings& settings,
                          const AcceleratorType& accelerator, const RankContext& place = {});

/// \throws Error (device), as select_device() does, if the device is neither the CPU nor a visible device.
void check_visible(c10::Device device, const AcceleratorType& accelerator, std::string_view operation,
                   const RankContext& place = {});

/// Makes it the current device of this thread: LibTorch uses it if only the device type is named, and for kernels
/// without a tensor. No effect for the CPU.
void set_current_device(c10::Device device);

}  // namespace accelerate::device

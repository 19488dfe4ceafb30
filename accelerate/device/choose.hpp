// SPDX-License-Identifier: Apache-2.0
// Which device a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::device {

/// What this process could compute on beside the CPU. LibTorch has one type of accelerator in a process.
struct AcceleratorType {
  c10::DeviceType type = c10::DeviceType::CUDA;
  int64_t count = 0;  ///< visible devices of that type

  bool operator==(const AcceleratorType&) const = default;
};

/// Of this process: CUDA, XPU, a vendor's own. No device without a driver, or in a build without any. Never throws.
AcceleratorType accelerator() noexcept;

/// Returns exactly settings.device if given; otherwise the CPU if it is requested or there is no accelerator; otherwise
/// the accelerator device of the local rank. A device name without an index also selects the local rank's device. Pure
/// function.
///
/// \throws Error (device) for a device that does not exist, and for more local ranks than devices unless
///         settings.allow_shared_gpus is set, which assigns the devices round-robin.
c10::Device choose(const env::ProcessEnv& process, const env::Settings& settings, const AcceleratorType& accelerator,
                   const Place& place = {});

/// \throws Error (device), as choose() does, if the device is neither the CPU nor a visible device.
void check_visible(c10::Device device, const AcceleratorType& accelerator, std::string_view operation,
                   const Place& place = {});

/// From now on it is this thread's current device: what LibTorch takes where only the type is named, and where kernels
/// without a tensor run. Nothing for the CPU.
void make_current(c10::Device device);

}  // namespace accelerate::device

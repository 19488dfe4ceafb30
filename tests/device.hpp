// SPDX-License-Identifier: Apache-2.0
// Device for tests that bench/gpu.sh also runs on a GPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdlib>

namespace testing {

/// The device in ACCELERATE_TEST_DEVICE; otherwise the CPU.
inline c10::Device device() {
  const char* const named = std::getenv("ACCELERATE_TEST_DEVICE");
  return named == nullptr ? c10::Device(c10::kCPU) : c10::Device(named);
}

}  // namespace testing

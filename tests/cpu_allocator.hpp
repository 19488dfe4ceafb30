// SPDX-License-Identifier: Apache-2.0
// For tests that replace LibTorch's allocator of the CPU for a while.
#pragma once

#include <cstdint>

namespace testing {

/// LibTorch ignores an allocator with a lower priority than an earlier one, so all tests use the same priority.
inline constexpr uint8_t kCpuAllocatorPriority = 100;

}  // namespace testing

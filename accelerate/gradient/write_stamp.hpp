// SPDX-License-Identifier: Apache-2.0
// Detects writes to a parameter between two points in time.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace accelerate::gradient {

/// The version counter and the first bytes if the host can read them immediately. The bytes are needed because
/// LibTorch's SGD writes without a new version (through data()).
struct WriteStamp {
  int64_t version = 0;
  std::array<std::byte, 64> head{};
  bool operator==(const WriteStamp&) const = default;
};

/// \param reads_device  If true, the first bytes are also read from an accelerator, and the host waits for them.
[[nodiscard]] WriteStamp write_stamp_of(const at::Tensor& parameter, bool reads_device = false);

}  // namespace accelerate::gradient

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

/// Detects writes to one parameter while a step on its gradient would be wrong. Writes of a prepared forward, such as
/// those of an embedding with max_norm, are excepted. Every function must get the same parameter.
class WriteWatch {
 public:
  /// Compares with the current values from now on.
  /// \param reads_device  As for write_stamp_of(), also for later comparisons.
  void arm(const at::Tensor& parameter, bool reads_device = false);
  void disarm() { armed_ = false; }
  [[nodiscard]] bool is_armed() const { return armed_; }
  /// False if the watch is not armed. A parameter that moved to another device or dtype has not changed.
  [[nodiscard]] bool has_changed(const at::Tensor& parameter) const;
  /// A prepared forward begins.
  void begin_forward(const at::Tensor& parameter) { unchanged_at_forward_ = armed_ && !has_changed(parameter); }
  /// The forward ended. Its writes no longer count, unless the parameter had changed before it.
  void end_forward(const at::Tensor& parameter);

 private:
  WriteStamp write_stamp_{};
  const void* data_ = nullptr;
  bool armed_ = false;
  bool reads_device_ = false;
  bool unchanged_at_forward_ = false;
};

}  // namespace accelerate::gradient

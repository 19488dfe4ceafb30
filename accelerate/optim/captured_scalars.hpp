// SPDX-License-Identifier: Apache-2.0
// Learning rates and step counts that a captured step reads from device memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace accelerate::optim {

/// A capture would fix rates and step counts at their values during the capture. The kernels of a captured step
/// therefore read them from scalars on the device. These are written before each replay; the host does not wait.
class CapturedScalars {
 public:
  /// Scalars of one kernel call.
  struct Entry {
    std::function<double()> rate;
    /// Adds to the counts of all parameters of the call and returns the new count.
    std::function<int64_t(int64_t)> count;
    /// Step count of the captured call.
    int64_t step = 0;
    /// 0-dim float32, as the kernels require.
    at::Tensor device_rate_scalar, device_count_scalar;
    /// Memory that the capture uses.
    std::vector<at::Tensor> held;
    /// Number of later captured steps on the same parameters.
    int64_t behind = 0;
  };

  void add(Entry entry) { entries_.push_back(std::move(entry)); }
  /// Ends the capture: all calls are added, and the counts include them.
  void ended();
  /// Adds `steps` to the optimizer's own counts; -1 if the captured step did not run.
  void count(int64_t steps) const;
  /// Writes the scalars. Call before each replay, on the stream of the replay.
  void upload_to_device() const;
  [[nodiscard]] bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;
};

/// Compares the inputs of a captured step with the current ones: options and addresses.
class CaptureFingerprint {
 public:
  void add(uint64_t part) { value_ = (value_ ^ part) * 0x9E3779B97F4A7C15U + (value_ >> 29); }
  void add(double part);
  void add(const void* part) { add(reinterpret_cast<uintptr_t>(part)); }  // NOLINT: an address as a number
  void add(std::string_view part) { add(std::hash<std::string_view>{}(part)); }
  /// Adds identity and address of the tensor.
  void add(const at::Tensor& tensor);
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace accelerate::optim

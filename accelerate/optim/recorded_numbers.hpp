// SPDX-License-Identifier: Apache-2.0
// Numbers of the host that a recorded step reads from its device: learning rates, and counts of steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace accelerate::optim {

/// What is recorded once and replayed often would take them as they were. So the kernels of a recorded step read them
/// from scalars on the device, which are written before each replay; the host does not wait.
class RecordedNumbers {
 public:
  /// Of one kernel call.
  struct Entry {
    std::function<double()> rate;
    /// Adds to the counts of all parameters of the call and returns the new count.
    std::function<int64_t(int64_t)> count;
    /// The count that the recorded call was made with.
    int64_t step = 0;
    /// 0-dim float32, as the kernels read them.
    at::Tensor rate_on_device, count_on_device;
    /// Memory that the recording uses.
    std::vector<at::Tensor> held;
    /// Steps on the same parameters that were recorded after it.
    int64_t behind = 0;
  };

  void add(Entry entry) { entries_.push_back(std::move(entry)); }
  /// All calls are there, and the counts are those after them.
  void ended();
  /// Advances the optimizer's own counts; -1 if the captured step did not happen.
  void count(int64_t steps) const;
  /// To be called before each replay, on the stream that replays.
  void tell_device() const;
  [[nodiscard]] bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;
};

/// Compares the inputs of a captured step with the current ones: options and addresses.
class Fingerprint {
 public:
  void add(uint64_t part) { value_ = (value_ ^ part) * 0x9E3779B97F4A7C15U + (value_ >> 29); }
  void add(double part);
  void add(const void* part) { add(reinterpret_cast<uintptr_t>(part)); }  // NOLINT: an address as a number
  void add(std::string_view part) { add(std::hash<std::string_view>{}(part)); }
  /// Which tensor, and where its memory is.
  void add(const at::Tensor& tensor);
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace accelerate::optim

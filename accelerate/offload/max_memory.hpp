// SPDX-License-Identifier: Apache-2.0
// The memory that weights may use on each device.
#pragma once

#include <c10/core/ScalarType.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/offload/module_sizes.hpp"

namespace torch::nn {
class Module;
}

namespace accelerate {

/// A number of bytes: 1000, "500MB" (decimal), "2GiB".
class MemorySize {
 public:
  MemorySize(std::integral auto bytes) : bytes_(static_cast<int64_t>(bytes)) {}  // NOLINT: implicit on purpose
  /// \throws Error (usage) for an invalid text.
  MemorySize(const std::string& text);                             // NOLINT
  MemorySize(const char* text) : MemorySize(std::string(text)) {}  // NOLINT
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
};

/// Memory by device: {{"0", "10GB"}, {"cpu", "30GB"}}. A number is an accelerator device; the others are "cpu" and
/// "disk".
using MaxMemory = std::map<std::string, MemorySize>;

/// Memory by device in the order in which devices are filled: accelerator devices by number, "cpu", "disk".
using MemoryList = std::vector<std::pair<std::string, int64_t>>;

/// \param max_memory  If empty, the free memory of the accelerator devices and the available memory of the CPU count.
/// \throws Error (usage) for another device name or a negative size.
[[nodiscard]] MemoryList get_max_memory(const MaxMemory& max_memory = {});

/// Returns limits by which infer_auto_device_map() gives all accelerator devices about equal parts of the model.
/// \param no_split_module_classes  As in DeviceMapOptions.
/// \param dtype                    As in DeviceMapOptions.
/// \param special_dtypes           As in DeviceMapOptions.
/// \param low_zero                 If true, device 0 gets as little as possible.
[[nodiscard]] MemoryList get_balanced_memory(const torch::nn::Module& module, const MaxMemory& max_memory = {},
                                             const std::vector<std::string>& no_split_module_classes = {},
                                             std::optional<c10::ScalarType> dtype = std::nullopt,
                                             const SpecialDtypes& special_dtypes = {}, bool low_zero = false);

}  // namespace accelerate

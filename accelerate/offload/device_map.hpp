// SPDX-License-Identifier: Apache-2.0
// Which device each part of a model is on.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/offload/max_memory.hpp"
#include "accelerate/offload/module_sizes.hpp"

namespace accelerate {

/// Device by name of a submodule, parameter or buffer: {{"embedding", "0"}, {"blocks.0", "cpu"}, {"", "disk"}}. A name
/// includes everything inside it, unless a longer name is in the map; "" is the whole model. A device is the number of
/// an accelerator device, a device of LibTorch ("cuda:1"), "cpu" or "disk".
using DeviceMap = std::map<std::string, std::string>;

struct DeviceMapOptions {
  /// If empty, the free memory of each device; see get_max_memory().
  MaxMemory max_memory{};
  /// Classes of modules that are not divided between devices: {"Block"} or {"ns::BlockImpl"}.
  std::vector<std::string> no_split_module_classes{};
  /// If set, the dtype to which load_checkpoint_and_dispatch() or the caller converts floating-point weights. If wider
  /// than that of a tensor, infer_auto_device_map() counts the dtype of the tensor.
  std::optional<c10::ScalarType> dtype{};
  /// Dtypes of single tensors, by name. They take precedence over `dtype`.
  SpecialDtypes special_dtypes{};
  /// If false, the result has an entry for each part that was placed, not for the largest modules on one device.
  bool clean_result = true;
  /// If false, buffers of parts on the CPU or the disk are on the main device, and a warning is logged if the limits of
  /// no accelerator device have space for them. The map itself does not depend on it.
  bool offload_buffers = false;
  /// If true, and if nothing fits on a device in order, the first later part that fits is placed there.
  bool fallback_allocation = false;
};

/// Places the parts of a model in the order of their registration: on accelerator devices, then on the CPU, then on the
/// disk, so that no limit is exceeded. On the first accelerator device and on the CPU, space for the largest remaining
/// layer is reserved. Modules with tied parameters are placed together. The result is that of Hugging Face
/// Accelerate's function of this name. Only names, shapes and dtypes are read, so the model may be from
/// init_empty_weights(). Each decision is logged at level debug, and each device that is skipped, at level info.
[[nodiscard]] DeviceMap infer_auto_device_map(const torch::nn::Module& module, const DeviceMapOptions& options = {});
/// \param limits  Memory by device, in the order in which devices are filled; `max_memory` of the options is ignored.
[[nodiscard]] DeviceMap infer_auto_device_map(const torch::nn::Module& module, const MemoryList& limits,
                                              const DeviceMapOptions& options);

/// \throws Error (usage) if the map has a name that the model lacks, or if a parameter or buffer has no device.
void check_device_map(const torch::nn::Module& module, const DeviceMap& device_map);

namespace offload {

/// Returns the device of a tensor: that of the longest name in the map that contains it. Null if there is none.
[[nodiscard]] const std::string* device_of(const std::string& name, const DeviceMap& device_map);

}  // namespace offload
}  // namespace accelerate

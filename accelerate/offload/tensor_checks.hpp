// SPDX-License-Identifier: Apache-2.0
// Private: checks before tensors are moved.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/offload/module_items.hpp"

namespace accelerate::offload {

/// \throws Error (usage) if the memory of a tensor belongs to a unit already.
void check_without_owner(const NamedTensors& tensors, std::string_view operation);

/// Returns the device of a device map: the number of an accelerator device, or a device of LibTorch.
/// \throws Error (usage) for an invalid text, or for a device that does not exist.
[[nodiscard]] c10::Device parse_device(const std::string& text);

/// Returns the device, with the index of the current device if an accelerator device has none.
[[nodiscard]] c10::Device with_index(c10::Device device);

}  // namespace accelerate::offload

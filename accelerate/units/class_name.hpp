// SPDX-License-Identifier: Apache-2.0
// Names of classes of modules. Pure values.
#pragma once

#include <string_view>

namespace accelerate::units {

/// Returns the name without namespaces and without LibTorch's suffix Impl: "Block" for "nets::BlockImpl" and for
/// TorchScript's "__torch__.nets.Block".
[[nodiscard]] std::string_view short_class_name(std::string_view name);

/// True if `wanted` names the class: "nets::BlockImpl" matches "Block", "BlockImpl" and "nets::BlockImpl".
[[nodiscard]] bool is_class_named(std::string_view name, std::string_view wanted);

}  // namespace accelerate::units

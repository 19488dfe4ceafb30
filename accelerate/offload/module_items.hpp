// SPDX-License-Identifier: Apache-2.0
// Private: modules and their direct tensors as a list with dotted names.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/units/unit_plan.hpp"

namespace torch::nn {
class Module;
}

namespace accelerate::offload {

/// A submodule, or a parameter or buffer.
struct ModuleItem {
  std::string name{};
  const torch::nn::Module* module = nullptr;  ///< null for a tensor
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns parameters, then buffers, each tensor once, under its first name.
[[nodiscard]] NamedTensors distinct_tensors(const torch::nn::Module& module);

/// The same for the parameters alone, and for the buffers alone.
[[nodiscard]] NamedTensors distinct_parameters(const torch::nn::Module& module);
[[nodiscard]] NamedTensors distinct_buffers(const torch::nn::Module& module, bool recurse = true);

/// A parameter or buffer.
struct TensorItem {
  std::string name{};
  at::Tensor tensor{};
  bool is_buffer = false;
};

/// Returns each tensor once, in the order of the modules: the direct parameters of each, then its direct buffers.
[[nodiscard]] std::vector<TensorItem> tensors_by_module(const torch::nn::Module& module);

/// Returns the direct parameters and then the children of a module, each once, under its first name.
[[nodiscard]] std::vector<ModuleItem> parts_of(const torch::nn::Module& module, const std::string& name);

/// True if the item has children and its class may be split.
[[nodiscard]] bool can_be_split(const ModuleItem& item, std::span<const std::string> no_split_module_classes);
/// True if the list names the class, as units::is_class_named().
[[nodiscard]] bool is_of_class(const torch::nn::Module& module, std::span<const std::string> classes);

/// Returns units without classes: the names of the modules of `units.classes`, those within others first, are before
/// `units.units`.
/// \throws Error (usage) with the classes of the model if one of them has no module.
[[nodiscard]] units::UnitOptions without_classes(const torch::nn::Module& module, units::UnitOptions units,
                                                 std::string_view operation);

/// "a.b" is inside "a" and inside "a.b".
[[nodiscard]] bool is_inside(const std::string& name, const std::string& module);

struct LargestLayers {
  int64_t bytes = 0;
  std::vector<std::string> names{};
};

/// Returns the largest of the modules that are not split, and the tensors.
[[nodiscard]] LargestLayers find_largest_layers(std::span<const ModuleItem> items,
                                                const std::map<std::string, int64_t>& sizes,
                                                std::span<const std::string> no_split_module_classes);

}  // namespace accelerate::offload

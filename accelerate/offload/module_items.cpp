// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/module_items.hpp"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>

#include "accelerate/units/class_name.hpp"

namespace accelerate::offload {
namespace {

void find_layers(const ModuleItem& item, const std::map<std::string, int64_t>& sizes,
                 std::span<const std::string> no_split_module_classes, LargestLayers& largest) {
  if (can_be_split(item, no_split_module_classes)) {
    for (const ModuleItem& part : parts_of(*item.module, item.name)) {
      if (part.module != nullptr) find_layers(part, sizes, no_split_module_classes, largest);
    }
    return;
  }
  const auto size = sizes.find(item.name);
  const int64_t bytes = size == sizes.end() ? 0 : size->second;
  if (bytes > largest.bytes) largest = {.bytes = bytes};
  if (bytes == largest.bytes) largest.names.push_back(item.name);
}

NamedTensors distinct(const torch::OrderedDict<std::string, at::Tensor>& all) {
  NamedTensors tensors;
  std::unordered_set<const void*> seen;
  for (const auto& tensor : all) {
    if (!tensor.value().defined() || !seen.insert(tensor.value().unsafeGetTensorImpl()).second) continue;
    tensors.emplace_back(tensor.key(), tensor.value());
  }
  return tensors;
}

}  // namespace

NamedTensors distinct_parameters(const torch::nn::Module& module) { return distinct(module.named_parameters()); }

NamedTensors distinct_buffers(const torch::nn::Module& module, bool recurse) {
  return distinct(module.named_buffers(recurse));
}

NamedTensors distinct_tensors(const torch::nn::Module& module) {
  NamedTensors tensors = distinct_parameters(module);
  const NamedTensors buffers = distinct_buffers(module);
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return tensors;
}

std::vector<ModuleItem> parts_of(const torch::nn::Module& module, const std::string& name) {
  const std::string prefix = name.empty() ? "" : name + ".";
  std::vector<ModuleItem> parts;
  for (const auto& [key, parameter] : distinct(module.named_parameters(/*recurse=*/false))) {
    parts.push_back({prefix + key});
  }
  std::unordered_set<const void*> seen;
  for (const auto& child : module.named_children()) {
    if (seen.insert(child.value().get()).second) parts.push_back({prefix + child.key(), child.value().get()});
  }
  return parts;
}

bool is_of_class(const torch::nn::Module& module, std::span<const std::string> classes) {
  return std::ranges::any_of(classes,
                             [&](const std::string& name) { return units::is_class_named(module.name(), name); });
}

bool can_be_split(const ModuleItem& item, std::span<const std::string> no_split_module_classes) {
  return item.module != nullptr && !item.module->children().empty() &&
         !is_of_class(*item.module, no_split_module_classes);
}

bool is_inside(const std::string& name, const std::string& module) {
  return name == module || name.starts_with(module + ".");
}

LargestLayers find_largest_layers(std::span<const ModuleItem> items, const std::map<std::string, int64_t>& sizes,
                                  std::span<const std::string> no_split_module_classes) {
  LargestLayers largest;
  for (const ModuleItem& item : items) find_layers(item, sizes, no_split_module_classes, largest);
  return largest;
}

}  // namespace accelerate::offload

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/module_items.hpp"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_set>

#include "accelerate/base/error.hpp"
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

std::vector<TensorItem> tensors_by_module(const torch::nn::Module& module) {
  std::vector<TensorItem> items;
  std::unordered_set<const void*> parameters, seen;
  for (const at::Tensor& parameter : module.parameters()) parameters.insert(parameter.unsafeGetTensorImpl());
  const auto add_direct = [&](const torch::nn::Module& part, const std::string& prefix) {
    for (const bool is_buffer : {false, true}) {
      for (const auto& tensor : is_buffer ? part.named_buffers(false) : part.named_parameters(false)) {
        const void* const impl = tensor.value().unsafeGetTensorImpl();
        if (is_buffer && parameters.contains(impl)) continue;  // has the name of the parameter
        if (!tensor.value().defined() || !seen.insert(impl).second) continue;
        items.push_back({.name = prefix + tensor.key(), .tensor = tensor.value(), .is_buffer = is_buffer});
      }
    }
  };
  add_direct(module, "");
  for (const auto& part : module.named_modules("", /*include_self=*/false)) add_direct(*part.value(), part.key() + ".");
  return items;
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

units::UnitOptions without_classes(const torch::nn::Module& module, units::UnitOptions units,
                                   std::string_view operation) {
  if (units.classes.empty()) return units;
  const auto modules = module.named_modules("", /*include_self=*/false);
  std::vector<std::string> found;
  for (const std::string& wanted : units.classes) {
    const size_t before = found.size();
    for (const auto& part : modules) {
      if (units::is_class_named(part.value()->name(), wanted)) found.push_back(part.key());
    }
    if (found.size() > before) continue;
    std::set<std::string> all;
    for (const auto& part : modules) all.emplace(units::short_class_name(part.value()->name()));
    base::fail(ErrorKind::usage, {}, operation,
               "units.classes has {}, but no module within the model is of this class; its classes are {}", wanted,
               fmt::join(all, ", "));
  }
  // The first match of a parameter counts, which is then the innermost module.
  const auto depth = [](const std::string& name) { return std::ranges::count(name, '.'); };
  std::ranges::stable_sort(found, std::greater<>(), depth);
  units.units.insert(units.units.begin(), found.begin(), found.end());
  units.classes.clear();
  return units;
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

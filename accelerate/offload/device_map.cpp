// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/device_map.hpp"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <set>

#include "accelerate/base/closest_match.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/offload/module_items.hpp"

namespace accelerate {
namespace {

std::vector<std::string> names_in(const torch::nn::Module& module) {
  std::vector<std::string> names{""};
  for (const auto& child : module.named_modules("", /*include_self=*/false)) names.push_back(child.key());
  for (const auto& [name, tensor] : module.named_parameters().pairs()) names.push_back(name);
  for (const auto& [name, tensor] : module.named_buffers().pairs()) names.push_back(name);
  return names;
}

}  // namespace

const std::string* offload::device_of(const std::string& name, const DeviceMap& device_map) {
  for (std::string module = name;;) {
    const auto found = device_map.find(module);
    if (found != device_map.end()) return &found->second;
    if (module.empty()) return nullptr;
    const size_t dot = module.rfind('.');
    module = dot == std::string::npos ? "" : module.substr(0, dot);
  }
}

void check_device_map(const torch::nn::Module& module, const DeviceMap& device_map) {
  const auto names = names_in(module);
  const std::set<std::string> known(names.begin(), names.end());
  for (const auto& [name, device] : device_map) {
    if (known.contains(name)) continue;
    const auto match = base::closest_match(name, names);
    base::fail(ErrorKind::usage, {}, "device_map", "the model has no module, parameter or buffer \"{}\"{}", name,
               match ? fmt::format("; did you mean \"{}\"?", *match) : "");
  }
  std::vector<std::string> uncovered;
  for (const auto& [name, tensor] : offload::distinct_tensors(module)) {
    if (offload::device_of(name, device_map) == nullptr) uncovered.push_back(name);
  }
  if (uncovered.empty()) return;
  base::fail(ErrorKind::usage, {}, "device_map",
             "the map has no device for {} tensors: {}; add their modules, or \"\" for the rest of the model",
             uncovered.size(), fmt::join(uncovered, ", "));
}

}  // namespace accelerate

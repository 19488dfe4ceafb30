// SPDX-License-Identifier: Apache-2.0
// Reads models as JSON, one a line, and writes the values that python_device_maps.py compares.
#include <torch/torch.h>

#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "accelerate/accelerate.hpp"

using nlohmann::json;

namespace {

/// Parameters with equal ids are one tensor.
using Shared = std::map<int64_t, at::Tensor>;

std::shared_ptr<torch::nn::Module> build(const json& spec, Shared& shared) {
  struct AnyModule : torch::nn::Module {
    using torch::nn::Module::Module;
  };
  auto module = std::make_shared<AnyModule>(spec.at("class").get<std::string>());
  const auto create = [](const json& tensor) {
    const auto dtype = tensor.at("half").get<bool>() ? torch::kHalf : torch::kFloat;
    return torch::empty({tensor.at("numel").get<int64_t>()}, dtype);
  };
  for (const json& tensor : spec.at("parameters")) {
    const auto [entry, is_new] = shared.try_emplace(tensor.at("id").get<int64_t>());
    if (is_new) entry->second = create(tensor);
    module->register_parameter(tensor.at("name"), entry->second);
  }
  for (const json& tensor : spec.at("buffers")) module->register_buffer(tensor.at("name"), create(tensor));
  for (const json& child : spec.at("children")) module->register_module(child.at("name"), build(child, shared));
  return module;
}

json as_json(const accelerate::MemoryList& limits) {
  json map = json::object();
  for (const auto& [device, bytes] : limits) map[device] = bytes;
  return map;
}

accelerate::SpecialDtypes dtypes_of(const json& names) {
  accelerate::SpecialDtypes dtypes;
  for (const auto& [name, half] : names.items()) dtypes.emplace(name, half.get<bool>() ? torch::kHalf : torch::kFloat);
  return dtypes;
}

json answer(const json& task) {
  Shared shared;
  const auto model = build(task.at("model"), shared);
  accelerate::DeviceMapOptions options;
  for (const auto& [device, bytes] : task.at("max_memory").items()) {
    options.max_memory.emplace(device, bytes.get<int64_t>());
  }
  options.no_split_module_classes = task.at("no_split").get<std::vector<std::string>>();
  if (task.at("half").get<bool>()) options.dtype = torch::kHalf;
  options.clean_result = task.at("clean").get<bool>();
  options.special_dtypes = dtypes_of(task.at("special"));
  options.offload_buffers = task.at("offload_buffers").get<bool>();
  options.fallback_allocation = task.at("fallback").get<bool>();
  const bool low_zero = task.at("low_zero").get<bool>();
  int64_t warnings = 0;
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view) { ++warnings; });
  const auto map = accelerate::infer_auto_device_map(*model, options);
  accelerate::base::set_log_handler(before);
  return {
      {"tied", accelerate::find_tied_parameters(*model)},
      {"sizes", accelerate::compute_module_sizes(*model, options.dtype, options.special_dtypes)},
      {"buffers", accelerate::compute_module_sizes(*model, options.dtype, options.special_dtypes, true).at("")},
      {"map", map},
      {"warnings", warnings},
      {"balanced", as_json(accelerate::get_balanced_memory(*model, options.max_memory, options.no_split_module_classes,
                                                           options.dtype, options.special_dtypes, low_zero))}};
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) std::cout << answer(json::parse(line)).dump() << "\n";
}

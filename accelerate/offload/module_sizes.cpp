// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/module_sizes.hpp"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>

#include "accelerate/offload/module_items.hpp"

namespace accelerate {
namespace {

int64_t tensor_size(const std::string& name, const at::Tensor& tensor, std::optional<c10::ScalarType> dtype,
                    const SpecialDtypes& special_dtypes) {
  const auto own = static_cast<int64_t>(tensor.element_size());
  const auto special = special_dtypes.find(name);
  if (special != special_dtypes.end()) return tensor.numel() * static_cast<int64_t>(c10::elementSize(special->second));
  // Integers are not converted.
  if (!dtype || c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) return tensor.numel() * own;
  return tensor.numel() * std::min(own, static_cast<int64_t>(c10::elementSize(*dtype)));
}

}  // namespace

std::vector<std::vector<std::string>> find_tied_parameters(const torch::nn::Module& module) {
  std::vector<std::vector<std::string>> groups;
  std::unordered_map<const void*, size_t> group_of;
  for (const auto& parameter : module.named_parameters()) {
    const auto [entry, is_new] = group_of.try_emplace(parameter.value().unsafeGetTensorImpl(), groups.size());
    if (is_new) groups.emplace_back();
    groups[entry->second].push_back(parameter.key());
  }
  std::erase_if(groups, [](const auto& group) { return group.size() < 2; });
  for (auto& group : groups) std::ranges::sort(group);
  return groups;
}

std::map<std::string, int64_t> compute_module_sizes(const torch::nn::Module& module,
                                                    std::optional<c10::ScalarType> dtype,
                                                    const SpecialDtypes& special_dtypes, bool buffers_only) {
  std::map<std::string, int64_t> sizes{{"", 0}};
  const auto tensors = buffers_only ? offload::distinct_buffers(module) : offload::distinct_tensors(module);
  for (const auto& [name, tensor] : tensors) {
    const int64_t bytes = tensor_size(name, tensor, dtype, special_dtypes);
    sizes[""] += bytes;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      sizes[name.substr(0, dot)] += bytes;
    }
    sizes[name] += bytes;
  }
  return sizes;
}

}  // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/parameter_groups.hpp"

#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include <unordered_map>
#include <utility>

namespace accelerate::optim {

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

std::unordered_set<const void*> keys_of(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> keys;
  for (const at::Tensor& tensor : tensors) keys.insert(tensor.unsafeGetTensorImpl());
  return keys;
}

void check_groups(const torch::optim::Optimizer& optimizer, const RankContext& place, std::string_view operation) {
  const auto& groups = optimizer.param_groups();
  std::unordered_map<const void*, std::pair<size_t, size_t>> seen;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& parameter = groups[g].params()[i];
      const auto [before, is_new] = seen.try_emplace(parameter.unsafeGetTensorImpl(), g, i);
      if (is_new) continue;
      const auto [first_group, first] = before->second;
      base::fail(
          ErrorKind::usage, place, operation,
          "parameter {} of the optimizer's group {} is parameter {} of its group {} too (shape [{}]): it would be "
          "stepped on twice; list it once. parameters() of a module names shared weights as often as they are "
          "registered",
          i, g, first, first_group, fmt::join(parameter.sizes(), ", "));
    }
  }
}

}  // namespace accelerate::optim

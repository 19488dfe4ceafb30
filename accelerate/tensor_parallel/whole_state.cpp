// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/whole_state.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/tensor_parallel/parameter_split.hpp"

namespace accelerate::nn {
namespace {

/// One parameter or buffer, and its split if it has one.
struct StateEntry {
  std::string name;
  at::Tensor tensor;
  const SplitLayer* layer = nullptr;
  ParameterSplit split{};

  [[nodiscard]] std::vector<int64_t> whole_sizes() const {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    if (layer != nullptr) sizes.at(static_cast<size_t>(split.dim)) *= layer->group().size();
    return sizes;
  }
};

void list_state(const torch::nn::Module& module, const std::string& prefix, std::vector<StateEntry>& all) {
  const auto* layer = dynamic_cast<const SplitLayer*>(&module);
  const auto splits = layer != nullptr ? layer->parameter_splits() : std::vector<ParameterSplit>{};
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto split =
        std::find_if(splits.begin(), splits.end(), [&](const auto& each) { return each.name == item.key(); });
    if (split == splits.end()) {
      all.push_back({prefix + item.key(), item.value()});
    } else {
      all.push_back({prefix + item.key(), item.value(), layer, *split});
    }
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) all.push_back({prefix + item.key(), item.value()});
  for (const auto& child : module.named_children()) list_state(*child.value(), prefix + child.key() + ".", all);
}

std::vector<StateEntry> module_state(const torch::nn::Module& module) {
  std::vector<StateEntry> all;
  list_state(module, "", all);
  return all;
}

template <typename... Args>
[[noreturn]] void refuse_state(fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, {}, "load_whole_state_dict", format, std::forward<Args>(args)...);
}

void check_state_entries(const std::vector<StateEntry>& entries, const StateDict& state) {
  for (const StateEntry& entry : entries) {
    const at::Tensor* whole = state.find(entry.name);
    if (whole == nullptr) refuse_state("{} is missing in the state dict", entry.name);
    const auto expected = entry.whole_sizes();
    if (whole->sizes() != at::IntArrayRef(expected)) {
      refuse_state("{} is [{}] in the state dict, [{}] here", entry.name, c10::Join(", ", whole->sizes()),
                   c10::Join(", ", expected));
    }
  }
  for (const auto& item : state) {
    const bool known = std::any_of(entries.begin(), entries.end(), [&](const auto& e) { return e.name == item.key(); });
    if (!known) refuse_state("{} of the state dict is not in the model", item.key());
  }
}

}  // namespace

StateDict whole_state_dict(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  StateDict state;
  for (const StateEntry& entry : module_state(module)) {
    if (entry.layer == nullptr) {
      state.insert(entry.name, entry.tensor.detach().clone());
      continue;
    }
    const comm::Group& group = entry.layer->group();
    comm::with_operation_context("whole_state_dict", "the parts of the layers are not joined", group.place(), [&] {
      state.insert(entry.name, whole_of(group.all_gather_list(entry.tensor.detach().contiguous()), entry.split));
    });
  }
  return state;
}

void load_whole_state_dict(torch::nn::Module& module, const StateDict& state) {
  const at::NoGradGuard no_grad;
  const auto entries = module_state(module);
  check_state_entries(entries, state);
  for (const StateEntry& entry : entries) {
    const at::Tensor& whole = state[entry.name];
    const at::Tensor own = entry.layer == nullptr
                               ? whole
                               : part_of(whole, entry.split, entry.layer->group().rank(), entry.layer->group().size());
    entry.tensor.copy_(own);
  }
}

}  // namespace accelerate::nn

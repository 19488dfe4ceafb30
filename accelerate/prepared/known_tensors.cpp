// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/known_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <unordered_map>
#include <utility>

#include "accelerate/gradient/same_everywhere.hpp"
#include "accelerate/optim/optimizer_state.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"

namespace accelerate::prepared {
namespace {

using KnownTensors = std::vector<device::KnownTensor>;
using Names = std::unordered_map<const void*, std::string>;

device::KnownTensor known(const gradient::NamedTensor& tensor, std::string kind) {
  return {.text = gradient::describe(tensor, "tensor"),
          .bytes = static_cast<int64_t>(tensor.tensor.nbytes()),
          .kind = std::move(kind)};
}

// What follows a name where there are several models: "fc1.weight of model_1".
std::string whose(const ModelCore& model) { return model.index() > 0 ? " of " + model.name() : ""; }

Names names_of_parameters(Shared& shared) {
  Names names;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& parameter : model.parameters()) {
      names.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name + whose(model));
    }
  }
  return names;
}

void add_model(const ModelCore& model, const Names& names, const Shared& shared, KnownTensors& all) {
  for (const auto& parameter : model.parameters()) {
    const std::string& name = names.at(parameter.tensor.unsafeGetTensorImpl());
    all.push_back(known({name, parameter.tensor}, "parameters"));
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) all.push_back(known({"gradient of " + name, gradient}, "gradients"));
    if (shared.masters.has(parameter.tensor)) {
      all.push_back(
          {.text = fmt::format("float32 master of {} [{}]", name, fmt::join(parameter.tensor.sizes().vec(), ", ")),
           .bytes = 4 * parameter.tensor.numel(),
           .kind = "float32 masters"});
    }
  }
  for (const auto& buffer : model.buffers()) {
    all.push_back(known({buffer.name + whose(model), buffer.tensor}, "buffers"));
  }
}

// "exp_avg of fc1.weight". Only of optimizers that are known: another one's state is requested by making a copy.
void add_state(OptimizerCore& core, const Names& names, const Shared& shared, KnownTensors& all) {
  if (core.fused() == nullptr) return;
  const auto state = optim::state_of(core.optimizer(), shared.place);
  int64_t number = 0;
  for (const auto& group : core.optimizer().param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = state.tensors.find(number++);
      if (found == state.tensors.end()) continue;
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      for (const auto& [what, tensor] : found->second) {
        if (tensor.device() != parameter.device() || tensor.dim() == 0) continue;
        all.push_back(known({fmt::format("{} of {}", what, name == names.end() ? core.name() : name->second), tensor},
                            core.name()));
      }
    }
  }
}

}  // namespace

KnownTensors known_tensors(Shared& shared) {
  KnownTensors all;
  const Names names = names_of_parameters(shared);
  for (const ModelCore& model : shared.registry.of<ModelCore>()) add_model(model, names, shared, all);
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) add_state(optimizer, names, shared, all);
  return all;
}

KnownTensors ModelCore::known_tensors() const { return prepared::known_tensors(*shared_); }

}  // namespace accelerate::prepared

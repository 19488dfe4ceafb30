// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/named_optimizer_state.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerate/archive/origin.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"

namespace accelerate::prepared {
namespace {

using archive::quote_for_terminal;

struct Place {
  size_t group = 0;
  int64_t position = 0;  ///< counted over all groups
};

/// The parameters of an optimizer by their names in the prepared models.
std::unordered_map<std::string, Place> places_of(AcceleratorState& shared, const OptimizerCore& optimizer) {
  std::unordered_map<const void*, Place> by_tensor;
  const auto& groups = optimizer.optimizer().param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const at::Tensor& parameter : groups[g].params()) {
      by_tensor.emplace(parameter.unsafeGetTensorImpl(), Place{g, static_cast<int64_t>(by_tensor.size())});
    }
  }
  std::unordered_map<std::string, Place> by_name;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      const auto found = by_tensor.find(parameter.unsafeGetTensorImpl());
      if (found == by_tensor.end()) continue;
      if (!by_name.emplace(name, found->second).second) {
        base::fail(ErrorKind::data, shared.place, "load_state",
                   "the optimizer state identifies parameters by name, and {} steps on two that are named {}; use one "
                   "optimizer for each model",
                   optimizer.name(), quote_for_terminal(name));
      }
    }
  }
  return by_name;
}

}  // namespace

void number_by_name(AcceleratorState& shared, const OptimizerCore& optimizer, state::OptimizerState& saved) {
  if (saved.parameter_names.empty()) return;
  const auto places = places_of(shared, optimizer);
  std::vector<int64_t> positions(saved.parameter_names.size());
  for (size_t g = 0; g < saved.groups.size(); ++g) {
    for (int64_t& number : saved.groups[g].parameters) {
      const std::string& name = saved.parameter_names.at(static_cast<size_t>(number));
      const auto found = places.find(name);
      if (found == places.end()) {
        base::fail(ErrorKind::data, shared.place, "load_state",
                   "the checkpoint has an optimizer state of parameter {}, on which {} does not step",
                   quote_for_terminal(name), optimizer.name());
      }
      if (found->second.group != g) {
        base::fail(ErrorKind::data, shared.place, "load_state",
                   "parameter {} is in group {} of the saved optimizer, and in group {} of {}",
                   quote_for_terminal(name), g, found->second.group, optimizer.name());
      }
      positions[static_cast<size_t>(number)] = found->second.position;
      number = found->second.position;
    }
    std::sort(saved.groups[g].parameters.begin(), saved.groups[g].parameters.end());
  }
  decltype(saved.tensors) tensors;
  for (auto& [number, state] : saved.tensors) tensors[positions.at(static_cast<size_t>(number))] = std::move(state);
  saved.tensors = std::move(tensors);
  saved.parameter_names.clear();
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/tensor_parts.hpp"

#include <fmt/format.h>

#include <string>
#include <unordered_map>
#include <utility>

#include "accelerate/prepared/checkpoint_content.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {
namespace {

using checkpoint::TensorPart;
using Parts = std::vector<TensorPart>;

void add_parameters(AcceleratorState& shared, Parts& parts) {
  std::unordered_map<const void*, state::ParameterShard> shards;
  for (sharding::FullyShardedParameters* model : fully_sharded_models(shared)) {
    if (model->mesh().replica != 0) continue;  // replicas have the same values
    for (auto& shard : model->shards(model->keys())) shards.emplace(shard.key, std::move(shard));
  }
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      const auto found = shards.find(parameter.unsafeGetTensorImpl());
      if (found == shards.end() || !has_parts(parameter)) continue;
      const auto& [key, shard] = *found;
      parts.push_back({"model", model.index(), name, shard.sizes, shard.begin, shard.value});
      if (shard.master.defined()) {
        parts.push_back({"master_weights", 0, name_in(model, name), shard.sizes, shard.begin, shard.master});
      }
    }
  }
}

// A count is equal on all ranks that have elements of the parameter. The rank with the first element saves it.
void add_state(const OptimizerCore& optimizer, state::OptimizerState& state, Parts& parts) {
  std::erase_if(state.tensors, [&](const auto& of_parameter) {
    const auto& [number, tensors] = of_parameter;
    const at::Tensor& parameter = optimizer.parameters()[static_cast<size_t>(number)];
    const auto range = optimizer.state_range_of(parameter);
    if (!range || !has_parts(parameter)) return false;
    if (optimizer.sharding_of(parameter)->mesh().replica != 0) return true;
    for (const auto& [name, tensor] : tensors) {
      const std::string full_name = fmt::format("{}.{}", number, name);
      if (tensor.dim() > 0) {
        parts.push_back({"optimizer", optimizer.index(), full_name, parameter.sizes().vec(), range->begin, tensor});
      } else if (range->begin == 0) {
        parts.push_back({"optimizer", optimizer.index(), full_name, {}, 0, tensor.reshape({1})});
      }
    }
    return true;
  });
}

}  // namespace

bool saves_parts(const AcceleratorState& shared) {
  return shared.sharding != sharding::ShardingStrategy::no_shard && shared.mesh.tensor.size() == 1 &&
         shared.state_dict_type == sharding::StateDictType::sharded_state_dict;
}

bool has_parts(const at::Tensor& parameter) { return parameter.numel() > 0 && parameter.is_contiguous(); }

TensorPart whole_part(std::string kind, int64_t index, std::string name, const at::Tensor& tensor) {
  return {std::move(kind), index, std::move(name), tensor.sizes().vec(), 0, tensor.detach().contiguous().reshape({-1})};
}

std::vector<TensorPart> take_parts(AcceleratorState& shared, OptimizerStates& states) {
  Parts parts;
  if (!saves_parts(shared)) return parts;
  add_parameters(shared, parts);
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    if (auto& state = states[static_cast<size_t>(optimizer.index())]) add_state(optimizer, *state, parts);
  }
  return parts;
}

std::unordered_set<const void*> parameters_in_parts(AcceleratorState& shared) {
  std::unordered_set<const void*> keys;
  if (!saves_parts(shared)) return keys;
  for (const sharding::FullyShardedParameters* model : fully_sharded_models(shared)) {
    for (const state::ParameterShard& parameter : model->parameters()) {
      if (has_parts(parameter.value)) keys.insert(parameter.key);
    }
  }
  return keys;
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/sharded_customs.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>

#include "accelerate/base/error.hpp"
#include "accelerate/device/copy_all.hpp"
#include "accelerate/optim/state_ranges.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/tensor_parts.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {
namespace {

using checkpoint::NamedTensors;
using state::ParameterShard;

struct ShardedParameter {
  sharding::FullyShardedParameters* model = nullptr;
  at::Tensor parameter{};
};

using ShardedParameters = std::unordered_map<const void*, ShardedParameter>;

/// Returns the parameters of which each rank keeps a part, by TensorImpl. The same on all ranks.
ShardedParameters sharded_parameters(AcceleratorState& shared) {
  ShardedParameters parameters;
  for (sharding::FullyShardedParameters* model : fully_sharded_models(shared)) {
    if (!model->shards_parameters()) continue;
    for (const ParameterShard& parameter : model->parameters()) {
      parameters.emplace(parameter.key, ShardedParameter{model, parameter.value});
    }
  }
  return parameters;
}

void check_shard(const AcceleratorState& shared, const ParameterShard& shard, size_t index, bool is_sharded) {
  const int64_t elements = shard.value.numel();
  if (is_sharded && elements != shard.end - shard.begin) {
    base::fail(ErrorKind::usage, shared.place, "save_state",
               "{} of registered object {} has {} elements, must have those of its range, {} to {}", shard.name, index,
               elements, shard.begin, shard.end);
  }
  if (is_sharded || elements == c10::multiply_integers(shard.sizes)) return;
  base::fail(ErrorKind::usage, shared.place, "save_state",
             "{} of registered object {} is a part of a parameter that no prepared model has sharded; make the object "
             "again after free_memory() or prepare()",
             shard.name, index);
}

/// Returns the shards of sharded parameters, by name.
std::unordered_map<std::string, ParameterShard> sharded_by_name(const CustomObject& object,
                                                                const ShardedParameters& parameters) {
  std::unordered_map<std::string, ParameterShard> sharded;
  if (!object.shards) return sharded;
  for (ParameterShard& shard : object.shards()) {
    if (parameters.contains(shard.key)) sharded.emplace(shard.name, std::move(shard));
  }
  return sharded;
}

}  // namespace

ShardedCustoms sharded_customs(AcceleratorState& shared, const std::vector<CustomObject>& customs) {
  ShardedCustoms all(customs.size());
  const auto parameters = sharded_parameters(shared);
  for (size_t i = 0; i < customs.size(); ++i) {
    if (!customs[i].shards) continue;
    std::vector<ParameterShard> shards = customs[i].shards();
    bool is_sharded = false;
    for (const ParameterShard& shard : shards) {
      check_shard(shared, shard, i, parameters.contains(shard.key));
      is_sharded = is_sharded || parameters.contains(shard.key);
    }
    if (is_sharded) all[i] = std::move(shards);
  }
  return all;
}

std::vector<std::optional<checkpoint::CustomState>> gather_customs(AcceleratorState& shared, const ShardedCustoms& own,
                                                                   std::vector<checkpoint::TensorPart>& parts) {
  std::vector<std::optional<checkpoint::CustomState>> states(own.size());
  const auto parameters = sharded_parameters(shared);
  for (size_t i = 0; i < own.size(); ++i) {
    if (!own[i]) continue;
    NamedTensors tensors;
    for (const ParameterShard& shard : *own[i]) {
      const auto found = parameters.find(shard.key);
      if (found == parameters.end()) {
        tensors.emplace_back(shard.name, shard.value);
        continue;
      }
      const auto& [model, parameter] = found->second;
      if (!saves_parts(shared) || !has_parts(parameter)) {
        const at::Tensor whole = model->gather_to_rank_0(shard.key, shard.value, "save_state");
        tensors.emplace_back(shard.name, whole.defined() ? whole : at::empty({0}, shard.value.options()));
      } else if (model->mesh().replica == 0 && shard.value.numel() > 0) {
        parts.push_back({"custom", static_cast<int64_t>(i), shard.name, shard.sizes, shard.begin, shard.value});
      }
    }
    states[i] = std::move(tensors);
  }
  return states;
}

void take_own_elements(AcceleratorState& shared, const CustomObject& object, size_t index,
                       checkpoint::CustomState& saved, const state::ReadElements& read) {
  auto* tensors = std::get_if<NamedTensors>(&saved);
  if (tensors == nullptr) return;
  const auto parameters = sharded_parameters(shared);
  const auto sharded = sharded_by_name(object, parameters);
  std::vector<device::CopyPair> copies;
  for (auto& [name, tensor] : *tensors) {
    const auto found = sharded.find(name);
    if (found == sharded.end()) {
      tensor = state::whole_of(tensor, read);
      continue;
    }
    const ParameterShard& shard = found->second;
    if (tensor.sizes() != at::IntArrayRef(shard.sizes)) {
      base::fail(ErrorKind::data, shared.place, "load_state", "{} of registered object {} is [{}], expected [{}]", name,
                 index, fmt::join(tensor.sizes(), ", "), fmt::join(shard.sizes, ", "));
    }
    const at::Tensor elements = at::empty({shard.end - shard.begin}, tensor.options().device(c10::kCPU));
    optim::append_copies(copies, elements, tensor, parameters.at(shard.key).parameter, {shard.begin, shard.end}, read);
    tensor = elements;
  }
  device::copy_all(copies);
}

CustomObject with_sharded_parameters(AcceleratorState& shared, CustomObject object) {
  if (!object.shards || !object.parameters) return object;
  CustomObject own = object;
  object.parameters = [&shared, own = std::move(own)] {
    const auto parameters = sharded_parameters(shared);
    const auto sharded = sharded_by_name(own, parameters);
    NamedTensors named = own.parameters();
    for (auto& [name, tensor] : named) {
      if (const auto found = sharded.find(name); found != sharded.end()) {
        tensor = parameters.at(found->second.key).parameter;
      }
    }
    return named;
  };
  return object;
}

std::optional<NamedTensors> own_tensors(const CustomObject& object) {
  NamedTensors own;
  if (object.shards) {
    for (const ParameterShard& shard : object.shards()) own.emplace_back(shard.name, shard.value);
    return own;
  }
  const checkpoint::CustomState state = object.save();
  const auto* tensors = std::get_if<NamedTensors>(&state);
  return tensors == nullptr ? std::nullopt : std::optional(*tensors);
}

}  // namespace accelerate::prepared

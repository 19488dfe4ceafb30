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

/// Returns the parameters of which each rank keeps a part, by TensorImpl. The same on all ranks.
std::unordered_map<const void*, ShardedParameter> sharded_parameters(AcceleratorState& shared) {
  std::unordered_map<const void*, ShardedParameter> parameters;
  for (sharding::FullyShardedParameters* model : fully_sharded_models(shared)) {
    if (!model->shards_parameters()) continue;
    for (const ParameterShard& parameter : model->parameters()) {
      parameters.emplace(parameter.key, ShardedParameter{model, parameter.value});
    }
  }
  return parameters;
}

}  // namespace

ShardedCustoms sharded_customs(AcceleratorState& shared, const std::vector<CustomObject>& customs) {
  ShardedCustoms all(customs.size());
  const auto parameters = sharded_parameters(shared);
  for (size_t i = 0; i < customs.size(); ++i) {
    if (!customs[i].shards) continue;
    std::vector<ParameterShard> shards = customs[i].shards();
    for (const ParameterShard& shard : shards) {
      if (parameters.contains(shard.key) || shard.value.numel() == c10::multiply_integers(shard.sizes)) continue;
      base::fail(ErrorKind::usage, shared.place, "save_state",
                 "{} of registered object {} is a part of a parameter that is sharded in no prepared model; was the "
                 "model released by free_memory() or prepared again? Make the object again",
                 shard.name, i);
    }
    const auto is_sharded = [&](const ParameterShard& shard) { return parameters.contains(shard.key); };
    if (std::ranges::any_of(shards, is_sharded)) all[i] = std::move(shards);
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

void take_own_elements(AcceleratorState& shared, const CustomObject& object, checkpoint::CustomState& saved,
                       const state::ReadElements& read) {
  auto* tensors = std::get_if<NamedTensors>(&saved);
  if (tensors == nullptr) return;
  const auto parameters = sharded_parameters(shared);
  std::unordered_map<std::string, ParameterShard> sharded;
  if (object.shards) {
    for (ParameterShard& shard : object.shards()) {
      if (parameters.contains(shard.key)) sharded.emplace(shard.name, std::move(shard));
    }
  }
  std::vector<device::CopyPair> copies;
  for (auto& [name, tensor] : *tensors) {
    const auto found = sharded.find(name);
    if (found == sharded.end()) {
      tensor = state::whole_of(tensor, read);
      continue;
    }
    const ParameterShard& shard = found->second;
    if (tensor.sizes() != at::IntArrayRef(shard.sizes)) {
      base::fail(ErrorKind::data, shared.place, "load_state", "{} of a registered object is [{}], expected [{}]", name,
                 fmt::join(tensor.sizes(), ", "), fmt::join(shard.sizes, ", "));
    }
    const at::Tensor elements = at::empty({shard.end - shard.begin}, tensor.options().device(c10::kCPU));
    optim::append_copies(copies, elements, tensor, parameters.at(shard.key).parameter, {shard.begin, shard.end}, read);
    tensor = elements;
  }
  device::copy_all(copies);
}

CustomObject with_sharded_parameters(AcceleratorState& shared, CustomObject object) {
  if (!object.shards || !object.parameters) return object;
  object.parameters = [&shared, shards = object.shards, parts = std::move(object.parameters)] {
    const auto parameters = sharded_parameters(shared);
    std::unordered_map<std::string, at::Tensor> whole;
    for (const ParameterShard& shard : shards()) {
      const auto found = parameters.find(shard.key);
      if (found != parameters.end()) whole.emplace(shard.name, found->second.parameter);
    }
    NamedTensors named = parts();
    for (auto& [name, tensor] : named) {
      if (const auto found = whole.find(name); found != whole.end()) tensor = found->second;
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

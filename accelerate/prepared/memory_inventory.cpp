// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/memory_inventory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "accelerate/gradient/verify_parameters.hpp"
#include "accelerate/optim/optimizer_state.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {
namespace {

using MemoryEntries = std::vector<device::MemoryEntry>;
using Names = std::unordered_map<const void*, std::string>;

device::MemoryEntry known(const gradient::NamedTensor& tensor, std::string kind) {
  return {.text = gradient::describe_tensor(tensor, "tensor"),
          .bytes = static_cast<int64_t>(tensor.tensor.nbytes()),
          .kind = std::move(kind)};
}

// Suffix of a name if there are several models: "fc1.weight of model_1".
std::string of_model(const ModelCore& model) { return model.index() > 0 ? " of " + model.name() : ""; }

Names names_of_parameters(AcceleratorState& shared) {
  Names names;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& parameter : model.parameters()) {
      names.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name + of_model(model));
    }
  }
  return names;
}

// With offload the part of the parameter, its master and its gradient are in the memory of the host.
bool is_offloaded(const ModelCore& model, const at::Tensor& parameter) {
  const sharding::FullyShardedParameters* sharded = model.fully_sharded();
  return sharded != nullptr && sharded->manages(parameter.unsafeGetTensorImpl()) &&
         sharded->part_device(parameter) != parameter.device();
}

// This rank holds only its part of a sharded parameter.
void count_part(const ModelCore& model, const at::Tensor& parameter, device::MemoryEntry& entry) {
  const sharding::FullyShardedParameters* sharded = model.fully_sharded();
  if (sharded == nullptr || !sharded->shards_parameters()) return;
  const auto range = sharded->range_of(parameter.unsafeGetTensorImpl());
  if (!range) return;
  entry.whole_bytes = entry.bytes;
  entry.bytes = (range->end - range->begin) * parameter.element_size();
  entry.text += fmt::format(", {} of {} elements", range->end - range->begin, parameter.numel());
}

void add_master_part(const ModelCore& model, const std::string& name, const at::Tensor& parameter, MemoryEntries& all) {
  const sharding::FullyShardedParameters* sharded = model.fully_sharded();
  if (sharded == nullptr || !sharded->has_master(parameter.unsafeGetTensorImpl())) return;
  const auto range = sharded->range_of(parameter.unsafeGetTensorImpl());
  all.push_back({.text = fmt::format("float32 master of {}, {} of {} elements", name, range->end - range->begin,
                                     parameter.numel()),
                 .bytes = 4 * (range->end - range->begin),
                 .kind = "float32 masters",
                 .whole_bytes = 4 * parameter.numel()});
}

void add_sharded_gradients(const ModelCore& model, MemoryEntries& all) {
  if (model.fully_sharded() == nullptr) return;
  device::MemoryEntry entry{
      .text = "this rank's part of the gradients" + of_model(model), .bytes = 0, .kind = "gradients"};
  const auto& parameters = model.fully_sharded()->parameters();
  if (!parameters.empty() && is_offloaded(model, parameters.front().value)) return;
  for (const at::Tensor& part : model.fully_sharded()->gradients(model.fully_sharded()->keys())) {
    entry.bytes += static_cast<int64_t>(part.nbytes());
  }
  entry.whole_bytes = entry.bytes * model.fully_sharded()->group().size();
  if (entry.bytes > 0) all.push_back(std::move(entry));
}

void add_model(const ModelCore& model, const Names& names, const AcceleratorState& shared, MemoryEntries& all) {
  for (const auto& parameter : model.parameters()) {
    if (is_offloaded(model, parameter.tensor)) continue;
    const std::string& name = names.at(parameter.tensor.unsafeGetTensorImpl());
    all.push_back(known({name, parameter.tensor}, "parameters"));
    count_part(model, parameter.tensor, all.back());
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) all.push_back(known({"gradient of " + name, gradient}, "gradients"));
    add_master_part(model, name, parameter.tensor, all);
    if (shared.masters.has(parameter.tensor)) {
      all.push_back(
          {.text = fmt::format("float32 master of {} [{}]", name, fmt::join(parameter.tensor.sizes().vec(), ", ")),
           .bytes = 4 * parameter.tensor.numel(),
           .kind = "float32 masters"});
    }
  }
  add_sharded_gradients(model, all);
  for (const auto& buffer : model.buffers()) {
    all.push_back(known({buffer.name + of_model(model), buffer.tensor}, "buffers"));
  }
}

// Adds "exp_avg of fc1.weight". Only optimizers with a fused step are listed: reading the state of another one copies
// it. Parameters without an element on this rank have no state here; on the other ranks it is counted as that of the
// listed ones.
void add_state(OptimizerCore& core, const Names& names, const AcceleratorState& shared, MemoryEntries& all) {
  if (core.fused() == nullptr) return;
  const auto state = optim::optimizer_state(core.optimizer(), shared.place);
  const size_t first = all.size();
  int64_t number = 0, bytes_per_element = 0, elements_elsewhere = 0;
  for (const auto& group : core.optimizer().param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto range = core.state_range_of(parameter);
      if (range && range->begin == range->end) elements_elsewhere += parameter.numel();
      const auto found = state.tensors.find(number++);
      if (found == state.tensors.end()) continue;
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      int64_t of_parameter = 0;
      for (const auto& [what, tensor] : found->second) {
        if (tensor.device() != parameter.device() || tensor.dim() == 0) continue;
        all.push_back(known({fmt::format("{} of {}", what, name == names.end() ? core.name() : name->second), tensor},
                            core.name()));
        if (range) all.back().whole_bytes = tensor.element_size() * parameter.numel();
        of_parameter += tensor.element_size();
      }
      bytes_per_element = std::max(bytes_per_element, of_parameter);
    }
  }
  if (elements_elsewhere == 0 || all.size() == first) return;
  device::MemoryEntry& last = all.back();
  last.whole_bytes = std::max(last.whole_bytes, last.bytes) + elements_elsewhere * bytes_per_element;
}

}  // namespace

MemoryEntries memory_inventory(AcceleratorState& shared) {
  MemoryEntries all;
  const Names names = names_of_parameters(shared);
  for (const ModelCore& model : shared.registry.of<ModelCore>()) add_model(model, names, shared, all);
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) add_state(optimizer, names, shared, all);
  return all;
}

MemoryEntries ModelCore::memory_inventory() const { return prepared::memory_inventory(*accelerator_state_); }

}  // namespace accelerate::prepared

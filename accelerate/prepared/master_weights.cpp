// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/master_weights.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <torch/optim/optimizer.h>

#include <tuple>
#include <utility>

#include "accelerate/deferred/deferred_tensor.hpp"
#include "accelerate/gradient/coalesced.hpp"

namespace accelerate::prepared {

void MasterWeights::keep(const std::vector<gradient::NamedTensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.requires_grad() || !parameter.is_floating_point() || find(parameter) != nullptr) continue;
    if (handed_over_.contains(parameter.unsafeGetTensorImpl())) continue;
    deferred::materialize_tensor(parameter);
    Entry entry{parameter, parameter.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true),
                gradient::write_stamp_of(parameter)};
    entries_.emplace(parameter.unsafeGetTensorImpl(), std::move(entry));
  }
}

void MasterWeights::hand_over(const std::vector<gradient::NamedTensor>& parameters) {
  for (const auto& parameter : parameters) {
    const void* key = parameter.tensor.unsafeGetTensorImpl();
    if (entries_.erase(key) > 0) handed_over_.insert(key);
  }
}

void MasterWeights::make_equal(const comm::Group& group, const std::vector<gradient::NamedTensor>& parameters) {
  std::vector<at::Tensor> masters;
  std::vector<Entry*> entries;
  for (const auto& parameter : parameters) {
    if (Entry* entry = find(parameter.tensor)) {
      masters.push_back(current(*entry));
      entries.push_back(entry);
    }
  }
  if (group.size() > 1) gradient::broadcast_tensors(group, masters);
  for (Entry* entry : entries) round(*entry);
}

MasterWeights::Entry* MasterWeights::find(const void* key) {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

// Keeps the master of each element that equals the rounded master. Such an element was not changed, or was changed
// back, as when averaged weights are swapped in and out.
const at::Tensor& MasterWeights::current(Entry& entry) {
  const at::NoGradGuard no_grad;
  const gradient::WriteStamp now = gradient::write_stamp_of(entry.parameter);
  // In place, because other objects hold the same master.
  if (entry.master.device() != entry.parameter.device()) {
    entry.master.set_data(entry.master.to(entry.parameter.device()));
  }
  if (std::exchange(entry.seen, now) == now) return entry.master;
  const at::Tensor value = entry.parameter.detach();
  const at::Tensor kept = entry.master.to(value.scalar_type()).eq(value);
  entry.master.copy_(at::where(kept, entry.master, value.to(at::kFloat)), /*non_blocking=*/true);
  return entry.master;
}

void MasterWeights::round(Entry& entry) {
  const at::NoGradGuard no_grad;
  entry.parameter.copy_(entry.master);
  entry.seen = gradient::write_stamp_of(entry.parameter);
}

std::vector<at::Tensor> MasterWeights::of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& parameter : parameters) {
    Entry* entry = find(parameter);
    list.push_back(entry == nullptr ? parameter : current(*entry));
  }
  return list;
}

void MasterWeights::set(const at::Tensor& parameter, const at::Tensor& master) {
  Entry* entry = find(parameter);
  if (entry == nullptr) return;
  const at::NoGradGuard no_grad;
  std::ignore = current(*entry);
  entry->master.copy_(master);
  round(*entry);
}

void MasterWeights::write_back(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (Entry* entry = find(parameter)) round(*entry);
  }
}

void MasterWeights::attach_masters(std::span<state::ParameterShard> parameter_shards) {
  for (state::ParameterShard& param_shard : parameter_shards) {
    Entry* entry = find(param_shard.key);
    if (entry == nullptr) continue;
    const at::Tensor& master = current(*entry);
    const bool whole = master.sizes() == param_shard.value.sizes();
    const int64_t start = master.storage_offset() + param_shard.begin;
    param_shard.master = whole ? master : master.as_strided({param_shard.end - param_shard.begin}, {1}, start);
  }
}

void MasterWeights::mark_stepped(std::span<const state::ParameterShard> parameter_shards) {
  for (const state::ParameterShard& param_shard : parameter_shards) {
    if (!param_shard.master.defined() || !param_shard.gradient.defined()) continue;
    if (Entry* entry = find(param_shard.key)) entry->seen = gradient::write_stamp_of(entry->parameter);
  }
}

void MasterWeights::mark_stepped(std::span<const at::Tensor> parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (Entry* entry = find(parameter)) entry->seen = gradient::write_stamp_of(parameter);
  }
}

MasterWeightScope::MasterWeightScope(torch::optim::Optimizer& optimizer, MasterWeights& masters)
    : optimizer_(optimizer), masters_(masters) {
  if (masters_.empty()) return;
  for (auto& group : optimizer_.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      MasterWeights::Entry* entry = masters_.find(parameter);
      if (entry == nullptr) continue;
      exchanged_.push_back({&parameter, parameter, MasterWeights::current(*entry)});
    }
  }
  for (const Exchanged& each : exchanged_) {
    const at::Tensor& gradient = each.parameter.grad();
    if (gradient.defined()) each.master.mutable_grad() = gradient.to(at::kFloat);
    move_state(each.parameter, each.master);
    *each.place = each.master;
  }
}

MasterWeightScope::~MasterWeightScope() {
  for (const Exchanged& each : exchanged_) {
    *each.place = each.parameter;
    each.master.mutable_grad().reset();
    move_state(each.master, each.parameter);
  }
}

void MasterWeightScope::write_back() {
  for (const Exchanged& each : exchanged_) {
    if (each.parameter.grad().defined()) MasterWeights::round(*masters_.find(each.parameter));
  }
}

void MasterWeightScope::move_state(const at::Tensor& from, const at::Tensor& to) {
  auto& state = optimizer_.state();
  const auto found = state.find(from.unsafeGetTensorImpl());
  if (found == state.end()) return;
  auto moved = std::move(found->second);
  state.erase(found);
  state[to.unsafeGetTensorImpl()] = std::move(moved);
}

}  // namespace accelerate::prepared

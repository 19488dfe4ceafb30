// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/sharded_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <utility>

#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::sharding {
namespace {

bool has_same_layout(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.strides() == parameter.strides() || (gradient.is_contiguous() && parameter.is_contiguous());
}

// A parameter that shares its storage with others gets its own, because a unit replaces the memory of storages.
at::Tensor flat_copy(const std::vector<PlacedParameter>& parameters, int64_t numel) {
  at::Tensor flat = at::zeros({numel}, parameters.front().parameter.options().requires_grad(false));
  for (const auto& [name, parameter, offset] : parameters) {
    if (!units::fills_its_storage(parameter)) parameter.set_data(parameter.detach().clone());
    flat.as_strided(parameter.sizes(), parameter.strides(), offset).copy_(parameter.detach());
  }
  return flat;
}

}  // namespace

ShardedParameters::ShardedParameters(const comm::Group& group, const std::vector<state::ParameterShard>& parameters,
                                     int64_t unit_bytes, bool waits_later, const Keys& alone)
    : ParameterSharding(one_shard_group(group), parameters,
                        separated(std::vector<int64_t>(parameters.size(), 0), parameters, alone), unit_bytes),
      waits_later_(waits_later),
      unit_of_(parameters_.size(), nullptr) {
  const at::NoGradGuard no_grad;
  for (const ShardUnit& unit : plan_.units) {
    whole_units_.emplace_back();
    if (unit.numel == 0) continue;
    std::vector<PlacedParameter> placed;
    for (size_t i = 0; i < unit.items.size(); ++i) {
      const auto& parameter = parameters_[static_cast<size_t>(unit.items[i])];
      placed.push_back({parameter.name, parameter.value, unit.offsets[i]});
    }
    const auto index = static_cast<int64_t>(whole_units_.size()) - 1;
    whole_units_.back() = std::make_shared<WholeUnit>(
        index, fmt::format("unit {} ({})", index, comm::first_name_and_count(placed.front().name, placed.size())),
        this->group(), use_order_);
    at::Tensor flat = flat_copy(placed, unit.numel);
    whole_units_.back()->adopt(std::move(flat), std::move(placed));
    for (const int64_t item : unit.items) unit_of_[static_cast<size_t>(item)] = whole_units_.back().get();
  }
}

std::vector<state::ParameterShard> ShardedParameters::shards(const Keys& keys) {
  const at::NoGradGuard no_grad;
  complete_step();
  for (const auto& unit : whole_units_) {
    if (unit != nullptr) unit->adopt_replaced_storages();
  }
  std::vector<state::ParameterShard> owned;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const state::ParameterShard& parameter = parameters_[i];
    if (!keys.contains(parameter.key)) continue;
    check_unchanged(i);
    check_gradient(i);
    const ShardRange& range = mine_[i];
    if (range.begin == range.end) continue;
    at::Tensor gradient = parameter.value.grad();
    // Memory of a tensor with the negative bit has the negated values.
    if (gradient.defined() && (!has_same_layout(gradient, parameter.value) || gradient.is_neg())) {
      gradient = at::empty_like(parameter.value).copy_(gradient);
    }
    owned.push_back({.name = parameter.name,
                     .sizes = parameter.sizes,
                     .begin = range.begin,
                     .end = range.end,
                     .key = parameter.key,
                     .value = unit_of_[i]->part().narrow(0, range.offset, range.end - range.begin),
                     .gradient = gradient.defined() ? flat_range(gradient, range.begin, range.end) : at::Tensor()});
  }
  return owned;
}

bool ShardedParameters::is_stepped(const state::ParameterShard& parameter, const Keys& keys) const {
  return keys.contains(parameter.key) && parameter.value.grad().defined();
}

void ShardedParameters::after_step(const Keys& keys) {
  std::vector<bool> is_exchanged(whole_units_.size(), false);
  for (size_t u = 0; u < whole_units_.size(); ++u) {
    for (const int64_t item : plan_.units[u].items) {
      const state::ParameterShard& parameter = parameters_[static_cast<size_t>(item)];
      if (!is_stepped(parameter, keys)) continue;
      base::count_write(parameter.value);
      is_exchanged[u] = whole_units_[u] != nullptr;
    }
  }
  start_exchanges(group(), is_exchanged, waits_later_);
}

void ShardedParameters::restore() { release_whole_units(); }

}  // namespace accelerate::sharding

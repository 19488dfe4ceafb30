// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/sharded_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "accelerate/comm/error_context.hpp"

namespace accelerate::sharding {
namespace {

bool has_same_layout(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.strides() == parameter.strides() || (gradient.is_contiguous() && parameter.is_contiguous());
}

}  // namespace

/// A gather that is under way.
struct ShardedParameters::UnitTransfer {
  const ShardUnit* unit = nullptr;
  at::Tensor part{}, whole{};
  comm::Pending pending{};
};

ShardedParameters::ShardedParameters(const comm::Group& group, std::vector<state::ParameterShard> parameters,
                                     int64_t unit_bytes)
    : ParameterSharding(one_shard_group(group), std::move(parameters), {}, unit_bytes) {}

std::vector<state::ParameterShard> ShardedParameters::shards(const Keys& keys) {
  const at::NoGradGuard no_grad;
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
                     .value = flat_range(parameter.value, range.begin, range.end),
                     .gradient = gradient.defined() ? flat_range(gradient, range.begin, range.end) : at::Tensor()});
  }
  return owned;
}

bool ShardedParameters::takes_part(const ShardUnit& unit, const Keys& keys) const {
  if (unit.numel == 0) return false;
  for (const int64_t i : unit.items) {
    const state::ParameterShard& parameter = parameters_[static_cast<size_t>(i)];
    if (keys.contains(parameter.key) && parameter.value.grad().defined()) return true;
  }
  return false;
}

ShardedParameters::UnitTransfer ShardedParameters::start(const ShardUnit& unit) const {
  const auto options = parameters_[static_cast<size_t>(unit.items.front())].value.options().requires_grad(false);
  UnitTransfer transfer{.unit = &unit,
                        .part = at::zeros({unit.numel / group().size()}, options),
                        .whole = at::empty({unit.numel}, options)};
  for (const ShardRange& range : ranges_of(unit, items_, group().size(), group().rank())) {
    const at::Tensor& value = parameters_[static_cast<size_t>(range.item)].value;
    transfer.part.narrow(0, range.offset, range.end - range.begin).copy_(flat_range(value, range.begin, range.end));
  }
  transfer.pending = group().all_gather_async(transfer.whole, transfer.part);
  return transfer;
}

void ShardedParameters::finish(UnitTransfer& transfer, const Keys& keys) const {
  transfer.pending.wait();
  for (size_t i = 0; i < transfer.unit->items.size(); ++i) {
    const state::ParameterShard& parameter = parameters_[static_cast<size_t>(transfer.unit->items[i])];
    if (!keys.contains(parameter.key) || !parameter.value.grad().defined()) continue;
    const int64_t numel = parameter.value.numel();
    flat_range(parameter.value, 0, numel).copy_(transfer.whole.narrow(0, transfer.unit->offsets[i], numel));
  }
}

// The next unit is on its way while the last one is copied to the parameters.
void ShardedParameters::after_step(const Keys& keys) {
  const at::NoGradGuard no_grad;
  comm::with_operation_context("optimizer.step", "the parameters that the ranks stepped on are not exchanged",
                               group().place(), [&] {
                                 std::optional<UnitTransfer> under_way;
                                 for (const ShardUnit& unit : plan_.units) {
                                   if (!takes_part(unit, keys)) continue;
                                   UnitTransfer next = start(unit);
                                   if (under_way) finish(*under_way, keys);
                                   under_way = std::move(next);
                                 }
                                 if (under_way) finish(*under_way, keys);
                               });
}

}  // namespace accelerate::sharding

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/parameter_sharding.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/sharding/range_record.hpp"
#include "accelerate/sharding/whole_unit.hpp"

namespace accelerate::sharding {
namespace {

std::string kind_of(at::ScalarType dtype, at::Device device) {
  return fmt::format("{} {}", c10::toString(dtype), device.str());
}

std::string kind_of(const at::Tensor& tensor) { return kind_of(tensor.scalar_type(), tensor.device()); }

// Two tensors over one memory would be divided separately and lose what connects them.
void check_separate_memory(const std::vector<state::ParameterShard>& parameters, const RankContext& place) {
  using Range = std::tuple<const void*, int64_t, int64_t, std::string>;  // storage, begin, end, name
  std::vector<Range> ranges;
  for (const state::ParameterShard& parameter : parameters) {
    const at::Tensor& value = parameter.value;
    if (value.numel() == 0) continue;
    const int64_t begin = value.storage_offset() * value.element_size();
    ranges.emplace_back(value.storage().unsafeGetStorageImpl(), begin, begin + static_cast<int64_t>(value.nbytes()),
                        parameter.name);
  }
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i) {
    const auto& [storage, begin, end, name] = ranges[i];
    const auto& [other_storage, other_begin, other_end, other_name] = ranges[i - 1];
    if (storage != other_storage || begin >= other_end) continue;
    base::fail(ErrorKind::usage, place, "prepare",
               "parameters {} and {} are two tensors that share memory; with sharding register one tensor under both "
               "names",
               other_name, name);
  }
}

}  // namespace

at::Tensor flat_range(const at::Tensor& dense, int64_t begin, int64_t end) {
  return dense.detach().as_strided({end - begin}, {1}, dense.storage_offset() + begin);
}

ParameterSharding::ParameterSharding(ShardMesh mesh, std::vector<state::ParameterShard> parameters,
                                     const std::vector<int64_t>& units, int64_t unit_bytes)
    : mesh_(std::move(mesh)), parameters_(std::move(parameters)) {
  check_separate_memory(parameters_, mesh_.world.place());
  check_layout();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& value = parameters_[i].value;
    kinds_.push_back({value.scalar_type(), value.device()});
    items_.push_back({.numel = value.numel(),
                      .element_bytes = value.element_size(),
                      .key = kind_of(value) + (value.requires_grad() ? "" : " frozen"),
                      .group = units.empty() ? 0 : units[i]});
    index_of_.emplace(parameters_[i].key, i);
    keys_.insert(parameters_[i].key);
    mine_.push_back({.item = static_cast<int64_t>(i)});
    strides_.push_back(value.strides().vec());
  }
  plan_ = plan_shards(items_, group().size(), unit_bytes);
  for (const ShardUnit& unit : plan_.units) {
    for (const ShardRange& range : ranges_of(unit, items_, group().size(), group().rank())) {
      mine_[static_cast<size_t>(range.item)] = range;
    }
  }
  record();
  for (state::ParameterShard& parameter : parameters_) {  // which would keep the memory alive
    parameter.gradient.reset();
    parameter.master.reset();
  }
}

std::vector<int64_t> ParameterSharding::separated(std::vector<int64_t> units,
                                                  const std::vector<state::ParameterShard>& parameters,
                                                  const Keys& alone) {
  int64_t next = units.empty() ? 0 : *std::ranges::max_element(units) + 1;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (alone.contains(parameters[i].key)) units[i] = next++;
  }
  return units;
}

// The caller has verified that shapes, strides and dtypes are the same on all ranks, so all ranks throw.
void ParameterSharding::check_layout() const {
  for (const state::ParameterShard& parameter : parameters_) {
    const at::Tensor& value = parameter.value;
    const bool has_supported_dtype = !value.requires_grad() || parameter.master.defined() ||
                                     value.scalar_type() == at::kFloat || value.scalar_type() == at::kDouble;
    if (!has_supported_dtype || value.layout() != at::kStrided) {
      base::fail(ErrorKind::usage, group().place(), "prepare",
                 "parameter {} is {}; with sharding a parameter must be Float or Double", parameter.name,
                 kind_of(value));
    }
    if (!value.is_non_overlapping_and_dense()) {
      base::fail(ErrorKind::usage, group().place(), "prepare",
                 "parameter {} of shape [{}] has strides [{}], so it has gaps or overlaps in memory and cannot be "
                 "divided over the ranks; register a contiguous copy of it",
                 parameter.name, fmt::join(value.sizes(), ", "), fmt::join(value.strides(), ", "));
    }
  }
}

void ParameterSharding::record() const {
  auto owned = parameters_;
  for (size_t i = 0; i < owned.size(); ++i) {
    owned[i].begin = mine_[i].begin;
    owned[i].end = mine_[i].end;
  }
  // The range of some ranks may be the same as before.
  for (const std::string& problem : mesh_.world.all_gather_bytes(changed_range(owned, mesh_.world.rank()))) {
    if (!problem.empty()) base::fail(ErrorKind::usage, group().place(), "prepare", "{}", problem);
  }
  record_ranges(owned);
}

std::optional<ShardRange> ParameterSharding::range_of(const void* key) const {
  const auto found = index_of_.find(key);
  if (found == index_of_.end()) return std::nullopt;
  return mine_[found->second];
}

void ParameterSharding::check_unchanged(size_t index) const {
  const state::ParameterShard& parameter = parameters_[index];
  const at::Tensor& value = parameter.value;
  if (value.sizes() == at::IntArrayRef(parameter.sizes) && value.strides() == at::IntArrayRef(strides_[index]) &&
      value.scalar_type() == kinds_[index].dtype && value.device() == kinds_[index].device) {
    return;
  }
  base::fail(
      ErrorKind::usage, group().place(), "optimizer.step",
      "parameter {} was {} of shape [{}] with strides [{}] in prepare() and is {} of shape [{}] with strides [{}] "
      "now; with sharding change a module before prepare()",
      parameter.name, kind_of(kinds_[index].dtype, kinds_[index].device), fmt::join(parameter.sizes, ", "),
      fmt::join(strides_[index], ", "), kind_of(value), fmt::join(value.sizes(), ", "),
      fmt::join(value.strides(), ", "));
}

void ParameterSharding::check_gradient(size_t index) const {
  const state::ParameterShard& parameter = parameters_[index];
  const at::Tensor& gradient = parameter.value.grad();
  if (!gradient.defined()) return;
  if (gradient.layout() != at::kStrided) {
    base::fail(
        ErrorKind::usage, group().place(), "optimizer.step",
        "the gradient of parameter {} is sparse; with sharding each rank steps on a range of its elements, which "
        "needs a dense gradient: set sparse to false in the embedding",
        parameter.name);
  }
  if (gradient.scalar_type() != parameter.value.scalar_type()) {
    base::fail(ErrorKind::usage, group().place(), "optimizer.step",
               "the gradient of parameter {} is {}, the parameter is {}; with sharding both must have one dtype",
               parameter.name, c10::toString(gradient.scalar_type()), c10::toString(parameter.value.scalar_type()));
  }
}

void ParameterSharding::start_exchanges(const comm::Group& group, const std::vector<bool>& is_exchanged,
                                        bool waits_later) {
  comm::with_operation_context(
      "optimizer.step", "the parameters that the ranks stepped on are not exchanged", this->group().place(), [&] {
        for (const int64_t unit : use_order_->fix(group, static_cast<int64_t>(whole_units_.size()))) {
          const auto u = static_cast<size_t>(unit);
          if (is_exchanged[u]) whole_units_[u]->start_exchange();
        }
      });
  if (!waits_later) complete_step();
}

void ParameterSharding::complete_step() {
  for (const auto& unit : whole_units_) {
    if (unit != nullptr) unit->finish_exchange();
  }
}

void ParameterSharding::forget_exchange() {
  for (const auto& unit : whole_units_) {
    if (unit != nullptr) unit->forget_exchange();
  }
}

void ParameterSharding::release_whole_units() {
  for (const auto& unit : whole_units_) {
    if (unit != nullptr) unit->release();
  }
}

at::Tensor ParameterSharding::gather_to_rank_0(const void* key, const at::Tensor& part,
                                               std::string_view operation) const {
  if (mesh_.replica != 0) return {};
  const at::NoGradGuard no_grad;
  const state::ParameterShard& parameter = parameters_[index_of_.at(key)];
  const at::Tensor& value = parameter.value;
  // One device on all ranks, because it decides on the connection.
  const auto options = value.options().requires_grad(false).device(part_device(value));
  const at::Tensor mine = part.defined() ? part.to(options.device()) : at::empty({0}, options);
  const auto problem = [&] { return fmt::format("the parts of parameter {} are not gathered", parameter.name); };
  const auto parts =
      comm::with_operation_context(operation, problem, group().place(), [&] { return group().gather(mine); });
  if (group().rank() != 0) return {};
  // The ranges of a parameter ascend with the rank.
  const at::Tensor whole = at::cat(parts);
  return whole.as_strided(value.sizes(), value.strides()).contiguous().cpu();
}

std::string ParameterSharding::description() const {
  int64_t all = 0, own = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    all += items_[i].numel;
    own += mine_[i].end - mine_[i].begin;
  }
  std::string text =
      fmt::format("{} units, {} elements on {} ranks, {} on this one", plan_.units.size(), all, group().size(), own);
  if (mesh_.has_replicas()) text += fmt::format(", {} replicas", mesh_.replicas);
  for (size_t u = 0; u < plan_.units.size(); ++u) {
    const ShardUnit& unit = plan_.units[u];
    const auto name = [&](int64_t i) { return parameters_[static_cast<size_t>(i)].name; };
    text +=
        fmt::format("\nunit {}: {}, {} elements per rank, {} parameters from {} to {}", u, unit.key,
                    unit.numel / group().size(), unit.items.size(), name(unit.items.front()), name(unit.items.back()));
  }
  return text;
}

}  // namespace accelerate::sharding

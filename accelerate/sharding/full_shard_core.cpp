// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/full_shard_core.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "accelerate/comm/error_context.hpp"

namespace accelerate::sharding {
namespace {

bool in_autograd() { return torch::autograd::get_current_graph_task_id() >= 0; }

std::string_view current_call() { return in_autograd() ? "backward" : "forward"; }

// Gradients have the dtype of the masters, if there are any.
int64_t largest_unit_bytes(const ShardPlan& plan, const std::vector<state::ParameterShard>& parameters) {
  int64_t largest = 0;
  for (const ShardUnit& unit : plan.units) {
    for (const int64_t item : unit.items) {
      const state::ParameterShard& parameter = parameters[static_cast<size_t>(item)];
      const int64_t in_master = parameter.master.defined() ? parameter.master.element_size() : 0;
      largest = std::max(largest, unit.numel * std::max(parameter.value.element_size(), in_master));
    }
  }
  return largest;
}

}  // namespace

FullyShardedParameters::Core::Core(comm::Group gather_group, ShardMesh the_mesh, const FullShardOptions& the_options)
    : gathers(std::move(gather_group)),
      mesh(std::move(the_mesh)),
      options(the_options),
      share_(1.0 / static_cast<double>(mesh.world.size())) {}

void FullyShardedParameters::Core::adopt(const ShardPlan& plan, const std::vector<state::ParameterShard>& parameters,
                                         const BeforeUnit& before_unit) {
  places.assign(parameters.size(), {nullptr, 0});
  buffers = std::make_shared<UnitBuffers>(largest_unit_bytes(plan, parameters));
  for (const ShardUnit& planned : plan.units) {
    if (planned.numel == 0) continue;
    std::vector<UnitMember> members;
    for (size_t i = 0; i < planned.items.size(); ++i) {
      const auto item = static_cast<size_t>(planned.items[i]);
      members.push_back({.name = parameters[item].name,
                         .parameter = parameters[item].value,
                         .master = parameters[item].master,
                         .item = item,
                         .offset = planned.offsets[i]});
    }
    const bool learns = members.front().parameter.requires_grad();
    units.push_back(
        std::make_shared<ShardedUnit>(static_cast<int64_t>(units.size()), std::move(members), planned.numel, learns));
    ShardedUnit& unit = *units.back();
    for (size_t i = 0; i < unit.members().size(); ++i) places[unit.members()[i].item] = {&unit, i};
    if (before_unit) {
      std::vector<at::Tensor> tensors;
      for (const UnitMember& member : unit.members()) tensors.push_back(member.parameter);
      before_unit(tensors);
    }
    unit.adopt(gathers, /*keep=*/!options.shard_parameters, weak_from_this(), buffers,
               copies_on(unit.members().front().parameter.device()));
  }
  // Until the first step, as if the forward used the units in the order of the model.
  reduction_order_.resize(units.size());
  std::iota(reduction_order_.rbegin(), reduction_order_.rend(), 0);
  buffers->unmap_unused();
}

// Parameters on the CPU are in the memory of the host already.
std::shared_ptr<PartCopies> FullyShardedParameters::Core::copies_on(c10::Device device) {
  if (!options.cpu_offload || device.is_cpu()) return nullptr;
  const auto found = std::ranges::find_if(copies_, [&](const auto& copies) { return copies->device() == device; });
  return found != copies_.end() ? *found : copies_.emplace_back(std::make_shared<PartCopies>(device));
}

void FullyShardedParameters::Core::finish_copies() {
  for (const auto& copies : copies_) copies->finish();
}

void FullyShardedParameters::Core::restore() {
  const std::lock_guard lock(mutex);
  free_all();
  remove_hooks();
  for (const auto& unit : units) {
    if (options.shard_parameters && !unit->is_whole()) gather(*unit);
    finish_copies();  // before the part on the host is freed
    unit->restore();
  }
  resident_.clear();
  places.assign(places.size(), {nullptr, 0});
  reduction_order_.clear();
  units.clear();
  buffers->unmap_unused();
}

void FullyShardedParameters::Core::check_scope(const std::string& parameter) const {
  if (scopes_ > 0 || whole_scopes_ > 0 || in_autograd()) return;
  base::fail(
      ErrorKind::usage, gathers.place(), "sharding",
      "parameter {} is sharded, and an operator used it outside model(x) and backward, where the {} ranks do not "
      "gather it; call on all ranks: auto whole = accelerator.summon_full_params(model)",
      parameter, gathers.size());
}

// Tensor::set_data(), which module->to() calls, is no operator.
std::string FullyShardedParameters::Core::moved_parameter() const {
  for (const auto& unit : units) {
    const UnitMember* moved = unit->moved_member();
    if (moved == nullptr) continue;
    return fmt::format(
        "parameter {} was moved or replaced after prepare(), is {} on {} now, and is no longer sharded; move a module "
        "to another dtype or device before prepare()",
        moved->name, c10::toString(moved->parameter.scalar_type()), moved->parameter.device().str());
  }
  return {};
}

void FullyShardedParameters::Core::use(ShardedUnit& unit, const units::GatheredParameter& parameter, bool writes) {
  const std::lock_guard lock(mutex);
  check_scope(parameter.name);
  unit.record_use(parameter.member);
  ++unit.users;
  if (!unit.is_whole()) {
    try {
      gather(unit);
      const bool keeps_others = whole_scopes_ > 0 || (!options.reshard_after_forward && !in_autograd());
      const auto before = resident_;
      for (ShardedUnit* other : before) {
        if (other == &unit || other->users > 0 || keeps_others) continue;
        other->free();
        std::erase(resident_, other);
      }
      prefetch();
    } catch (...) {
      --unit.users;
      throw;
    }
  }
  unit.is_written = unit.is_written || writes;
}

void FullyShardedParameters::Core::release(ShardedUnit& unit) noexcept {
  const std::lock_guard lock(mutex);
  --unit.users;
}

template <typename Collective>
void FullyShardedParameters::Core::with_gather_context(const ShardedUnit& unit, const Collective& collective) {
  const auto problem = [&unit] { return fmt::format("{} is not gathered", unit.name()); };
  comm::with_operation_context(current_call(), problem, gathers.place(), collective);
}

void FullyShardedParameters::Core::gather(ShardedUnit& unit) {
  with_gather_context(unit, [&] {
    if (!unit.is_under_way()) {
      unit.start_gather(gathers);
      order_.record_gather(unit.index(), in_autograd());
    }
    unit.finish_gather();
  });
  resident_.push_back(&unit);
}

void FullyShardedParameters::Core::prefetch() {
  if (whole_scopes_ > 0) return;
  const auto next = order_.predicted();
  // The last unit of a forward may predict the first gather of the backward.
  const bool in_backward = order_.predicts_backward();
  if (!next || !(in_backward ? options.prefetch_in_backward : options.prefetch)) return;
  ShardedUnit& unit = *units[static_cast<size_t>(*next)];
  if (unit.is_whole() || unit.is_under_way()) return;
  with_gather_context(unit, [&] { unit.start_gather(gathers); });
  order_.record_gather(unit.index(), in_backward);
}

void FullyShardedParameters::Core::free_all() {
  if (options.shard_parameters && whole_scopes_ == 0) {
    for (const auto& unit : units) {
      if (unit->users == 0) with_gather_context(*unit, [&] { unit->free(); });  // which waits for a prefetched unit
    }
    for (const auto& copies : copies_) copies->free_buffers();
    std::erase_if(resident_, [](const ShardedUnit* unit) { return !unit->is_whole(); });
  }
  buffers->unmap_unused();
}

void FullyShardedParameters::Core::before_forward(bool learns, bool is_synchronized) {
  const std::lock_guard lock(mutex);
  if (const std::string moved = moved_parameter(); !moved.empty()) {
    base::fail(ErrorKind::usage, gathers.place(), "forward", "{}", moved);
  }
  if (in_backward_ && backward_alive_.expired()) abort_failed_backward();
  if (scopes_ == 0) {
    free_all();  // of a forward without a backward
    if (learns && std::exchange(had_backward_, false)) {
      for (const auto& unit : units) unit->begin_forward();
    }
    order_.begin_pass(learns);
    pass_learns_ = learns;
  }
  ++scopes_;
  if (learns) sync = is_synchronized;
}

// The unit that the forward used last is the one that its backward uses first.
void FullyShardedParameters::Core::after_forward() noexcept {
  const std::lock_guard lock(mutex);
  if (--scopes_ > 0 || pass_learns_) return;
  try {
    free_all();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a peer failed; the next collective throws the error
  }
}

void FullyShardedParameters::Core::open_whole() {
  const std::lock_guard lock(mutex);
  if (whole_scopes_++ > 0 || !options.shard_parameters) return;
  try {
    for (const auto& unit : units) {
      if (!unit->is_whole()) gather(*unit);
    }
  } catch (...) {
    --whole_scopes_;
    throw;
  }
}

void FullyShardedParameters::Core::close_whole() noexcept {
  const std::lock_guard lock(mutex);
  if (--whole_scopes_ > 0) return;
  for (const auto& unit : units) unit->is_written = true;  // also by data_ptr(), which is no operator
  try {
    free_all();
  } catch (...) {  // NOLINT(bugprone-empty-catch): as in after_forward()
  }
}

}  // namespace accelerate::sharding

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/fully_sharded_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "accelerate/base/log.hpp"
#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/sharding/full_shard_core.hpp"

namespace accelerate::sharding {
namespace {

std::vector<int64_t> units_of(const std::vector<state::ParameterShard>& parameters, const units::UnitOptions& options) {
  std::vector<units::UnitItem> items;
  for (const state::ParameterShard& parameter : parameters) {
    items.push_back({parameter.name, parameter.value.numel(), static_cast<int64_t>(parameter.value.nbytes())});
  }
  return units::find_units(items, options);
}

/// As narrow() of a flat tensor, but without an operator, which would take a third of the time that full_shard adds to
/// a step of small parameters.
at::Tensor elements_of(const at::Tensor& flat, int64_t offset, int64_t length) {
  at::Tensor elements = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(flat.storage()),
                                                                 flat.key_set(), flat.dtype());
  elements.unsafeGetTensorImpl()->set_storage_offset(flat.storage_offset() + offset);
  elements.unsafeGetTensorImpl()->set_sizes_contiguous({length});
  return elements;
}

}  // namespace

FullyShardedParameters::FullyShardedParameters(const ShardMesh& mesh,
                                               const std::vector<state::ParameterShard>& parameters,
                                               const FullShardOptions& options, const BeforeUnit& before_unit,
                                               const Keys& alone)
    : ParameterSharding(mesh, parameters, separated(units_of(parameters, options.units), parameters, alone),
                        std::numeric_limits<int64_t>::max()),
      core_(std::make_shared<Core>(mesh_.shard.duplicate(), mesh_, options)) {
  parts_on_host_ = options.cpu_offload;
  core_->adopt(plan_, parameters, before_unit);
  core_->register_hooks();
  view_own_elements();
  if (!options.shard_parameters) keep_whole();
}

// Views are made once, because an operator for each parameter takes most of the time of a step of small ones.
void FullyShardedParameters::view_own_elements() {
  own_elements_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ShardedUnit* unit = core_->places[i].first;
    const ShardRange& range = mine_[i];
    if (unit == nullptr || range.begin == range.end) continue;
    own_elements_[i].value = unit->part().narrow(0, range.offset, range.end - range.begin);
    if (unit->master().defined()) {
      own_elements_[i].master = unit->master().narrow(0, range.offset, range.end - range.begin);
    }
  }
}

void FullyShardedParameters::keep_whole() {
  for (const auto& unit : core_->units) {
    std::vector<PlacedParameter> placed;
    for (const UnitMember& member : unit->members()) placed.push_back({member.name, member.parameter, member.offset});
    whole_units_.push_back(std::make_shared<WholeUnit>(unit->index(), unit->name(), core_->gathers, use_order_));
    // The part is a view of the unit's flat tensor.
    const at::Tensor& part = unit->part();
    whole_units_.back()->adopt(part.as_strided({part.numel() * core_->gathers.size()}, {1}, 0), std::move(placed));
  }
}

FullyShardedParameters::~FullyShardedParameters() {
  const std::lock_guard lock(core_->mutex);
  core_->remove_hooks();
}

void FullyShardedParameters::restore() {
  release_whole_units();
  core_->restore();
  own_elements_.clear();
}

void FullyShardedParameters::before_forward(bool learns, bool sync) { core_->before_forward(learns, sync); }
void FullyShardedParameters::after_forward() noexcept { core_->after_forward(); }

void FullyShardedParameters::set_sync(bool sync) {
  const std::lock_guard lock(core_->mutex);
  core_->sync = sync;
}

int64_t FullyShardedParameters::arrivals(const Keys& keys) const {
  const std::lock_guard lock(core_->mutex);
  int64_t sum = 0;
  for (const auto& unit : core_->units) {
    for (const UnitMember& member : unit->members()) {
      if (keys.contains(parameters_[member.item].key)) sum += member.arrivals;
    }
  }
  return sum;
}

bool FullyShardedParameters::has_gradient(const Keys& keys) const {
  const std::lock_guard lock(core_->mutex);
  return std::ranges::any_of(core_->units, [&](const auto& unit) {
    if (!unit->gradient().defined() && !unit->has_local_gradient()) return false;
    return std::ranges::any_of(unit->members(),
                               [&](const UnitMember& member) { return keys.contains(parameters_[member.item].key); });
  });
}

std::vector<at::Tensor> FullyShardedParameters::gradients(const Keys& keys) {
  const std::lock_guard lock(core_->mutex);
  core_->finish_copies();
  std::vector<at::Tensor> list;
  for (const auto& unit : core_->units) {
    if (!unit->gradient().defined()) continue;
    const auto is_listed = [&](const UnitMember& member) { return keys.contains(parameters_[member.item].key); };
    if (std::ranges::all_of(unit->members(), is_listed)) {
      list.push_back(unit->gradient());
      continue;
    }
    for (const UnitMember& member : unit->members()) {
      const ShardRange& range = mine_[member.item];
      if (is_listed(member) && range.end > range.begin) {
        list.push_back(unit->gradient().narrow(0, range.offset, range.end - range.begin));
      }
    }
  }
  return list;
}

void FullyShardedParameters::zero(const Keys& keys, bool set_to_none) {
  const std::lock_guard lock(core_->mutex);
  core_->zero(keys, set_to_none);
  const at::NoGradGuard no_grad;
  for (const auto& unit : core_->units) {
    if (!unit->gradient().defined()) continue;
    const auto is_left = [](const UnitMember& member) { return member.has_gradient || member.is_used; };
    if (std::ranges::none_of(unit->members(), is_left)) {
      unit->gradient().reset();
      continue;
    }
    core_->finish_copies();
    for (const UnitMember& member : unit->members()) {
      const ShardRange& range = mine_[member.item];
      if (keys.contains(parameters_[member.item].key) && range.end > range.begin) {
        unit->gradient().narrow(0, range.offset, range.end - range.begin).zero_();
      }
    }
  }
}

void FullyShardedParameters::scale_gradients(double factor) {
  const std::lock_guard lock(core_->mutex);
  core_->finish_copies();
  const at::NoGradGuard no_grad;
  for (const auto& unit : core_->units) unit->scale_gradients(factor);
}

void FullyShardedParameters::before_step() { core_->before_step(); }

std::vector<state::ParameterShard> FullyShardedParameters::shards(const Keys& keys) {
  return shards(keys, /*only_used=*/true);
}

std::vector<state::ParameterShard> FullyShardedParameters::shards_with_gradients(const Keys& keys) {
  return shards(keys, /*only_used=*/false);
}

std::vector<state::ParameterShard> FullyShardedParameters::shards(const Keys& keys, bool only_used) {
  complete_step();
  const std::lock_guard lock(core_->mutex);
  core_->free_all();  // keeps new values that operators wrote
  core_->finish_copies();
  for (const auto& unit : core_->units) {
    if (unit->is_whole()) unit->take_over();  // in a scope with whole parameters, and of parameters that stay whole
  }
  std::vector<state::ParameterShard> owned;
  owned.reserve(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [unit, place] = core_->places[i];
    const state::ParameterShard& parameter = parameters_[i];
    if (unit == nullptr || !keys.contains(parameter.key)) continue;
    check_unchanged(i);
    const ShardRange& range = mine_[i];
    if (range.begin == range.end) continue;
    const int64_t length = range.end - range.begin;
    const bool has_gradient = unit->gradient().defined() && (!only_used || unit->members()[place].is_used);
    owned.push_back({.name = parameter.name,
                     .sizes = parameter.sizes,
                     .begin = range.begin,
                     .end = range.end,
                     .key = parameter.key,
                     .value = own_elements_[i].value,
                     .gradient = has_gradient ? elements_of(unit->gradient(), range.offset, length) : at::Tensor(),
                     .master = own_elements_[i].master});
  }
  return owned;
}

void FullyShardedParameters::warn_about_old_gradients(const Keys& keys) const {
  const std::lock_guard lock(core_->mutex);
  for (const auto& unit : core_->units) {
    for (const UnitMember& member : unit->members()) {
      if (member.stepped_after < 0 || member.stepped_after == core_->backwards || !member.is_used) continue;
      if (!keys.contains(parameters_[member.item].key)) continue;
      return base::log_once(
          base::LogLevel::warning, mesh_.world.place(),
          "optimizer.step: the gradient of parameter {} was not zeroed after the last step, and later backwards added "
          "to it. zero_grad() of the module or of LibTorch's optimizer does not reach sharded gradients: call that of "
          "the prepared optimizer or model",
          member.name);
    }
  }
}

void FullyShardedParameters::after_step(const Keys& keys) {
  const std::lock_guard lock(core_->mutex);
  core_->was_stepped = true;
  std::vector<bool> is_exchanged(core_->units.size(), false);
  for (const auto& unit : core_->units) {
    bool is_stepped = false;
    for (UnitMember& member : unit->members()) {
      if (!keys.contains(parameters_[member.item].key) || !member.is_used) continue;
      is_stepped = true;
      member.stepped_after = core_->backwards;
      base::count_write(member.parameter);
    }
    is_exchanged[static_cast<size_t>(unit->index())] = is_stepped;
    unit->mark_stepped();
  }
  if (core_->options.shard_parameters) return;
  start_exchanges(core_->gathers, is_exchanged, core_->options.prefetch);
}

bool FullyShardedParameters::has_master(const void* key) const {
  const auto found = index_of_.find(key);
  if (found == index_of_.end()) return false;
  const std::lock_guard lock(core_->mutex);
  const ShardedUnit* unit = core_->places[found->second].first;
  return unit != nullptr && unit->master().defined();
}

void FullyShardedParameters::parts_replaced() {
  complete_step();
  const std::lock_guard lock(core_->mutex);
  for (const auto& unit : core_->units) {
    for (const UnitMember& member : unit->members()) base::count_write(member.parameter);
    if (unit->is_whole()) {  // parameters that stay whole, and those in a scope with whole parameters
      comm::with_operation_context("load", "the loaded values are not exchanged", group().place(),
                                   [&] { unit->exchange_parts(core_->gathers); });
    }
    unit->mark_stepped();
  }
}

bool FullyShardedParameters::shards_parameters() const { return core_->options.shard_parameters; }
UnitBuffers::Counts FullyShardedParameters::buffer_counts() const { return core_->buffers->counts(); }
void FullyShardedParameters::open_whole() {
  complete_step();
  core_->open_whole();
}
void FullyShardedParameters::close_whole() noexcept { core_->close_whole(); }

void FullyShardedParameters::run_backward(std::span<FullyShardedParameters* const> models,
                                          const std::function<void()>& backward) {
  struct Deferral {
    explicit Deferral(std::span<FullyShardedParameters* const> the_models) : models(the_models) {
      const auto token = std::make_shared<char>();
      for (FullyShardedParameters* model : models) model->core_->deferral = token;
    }
    ~Deferral() {
      for (FullyShardedParameters* model : models) model->core_->deferral.reset();
    }
    Deferral(const Deferral&) = delete;
    Deferral& operator=(const Deferral&) = delete;
    std::span<FullyShardedParameters* const> models;
  } const deferral(models);
  backward();
  for (FullyShardedParameters* model : models) model->core_->finish_backward();
}

void FullyShardedParameters::run_micro_batches(const std::function<void()>& run) {
  FullyShardedParameters* const own = this;
  run_backward({&own, 1}, [&] {
    core_->hold_gradients();
    run();
    core_->release_gradients();
  });
}

at::Tensor FullyShardedParameters::held_gradient(const at::Tensor& parameter) {
  const std::lock_guard lock(core_->mutex);
  const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
  if (found == index_of_.end()) {
    base::fail(ErrorKind::usage, mesh_.world.place(), "backward",
               "a parameter of shape [{}] needs a gradient and did not in prepare(), so its gradient is not reduced; "
               "give its module to prepare() again after requires_grad is set",
               fmt::join(parameter.sizes(), ", "));
  }
  if (!core_->reduces_held) return {};
  const auto& [unit, member] = core_->places[found->second];
  return unit == nullptr ? at::Tensor() : unit->local_gradient(member);
}

void check_options(const WholeParametersOptions& options, const RankContext& place) {
  if (options.rank0_only) {
    base::fail(
        ErrorKind::usage, place, "summon_full_params",
        "rank0_only is true, and the scope makes the parameters whole on every rank; call get_state_dict(model), "
        "which gathers them on rank 0 only, one after another");
  }
  if (!options.writeback) {
    base::fail(ErrorKind::usage, place, "summon_full_params",
               "writeback is false, and changes in the scope always persist; change copies, such as parameter.clone()");
  }
}

WholeParameters::WholeParameters(const std::vector<FullyShardedParameters*>& models) {
  for (FullyShardedParameters* model : models) {
    try {
      model->open_whole();
    } catch (...) {
      for (FullyShardedParameters* open : models_) open->close_whole();
      throw;
    }
    models_.push_back(model);
  }
}

WholeParameters::~WholeParameters() {
  for (FullyShardedParameters* model : models_) model->close_whole();
}

}  // namespace accelerate::sharding

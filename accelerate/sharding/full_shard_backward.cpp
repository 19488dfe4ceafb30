// SPDX-License-Identifier: Apache-2.0
// Gradients of fully sharded parameters: hooks, reductions, and the checks before a step.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/sharding/full_shard_core.hpp"

namespace accelerate::sharding {
namespace {

constexpr int64_t kBitsPerWord = 62;
// What a rank sends before a step: these words, and a bit for each parameter that has a gradient.
constexpr int64_t kOrder = 0, kReductionOrder = 1, kReplica = 2, kHasProblem = 3, kFirstBits = 4;

/// Errors of the collective name the unit.
template <typename Collective>
void with_reduction_context(const ShardedUnit& unit, const RankContext& place, const Collective& collective) {
  const auto problem = [&unit] { return fmt::format("the gradients of {} are not reduced", unit.name()); };
  comm::with_operation_context("backward", problem, place, collective);
}

}  // namespace

void FullyShardedParameters::Core::register_hooks() {
  struct ArrivalHook : torch::autograd::FunctionPostHook {
    ArrivalHook(std::weak_ptr<Core> the_core, ShardedUnit& the_unit, size_t the_member)
        : core(std::move(the_core)), unit(&the_unit), member(the_member) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      if (const auto alive = core.lock()) alive->arrived(*unit, member);
      return outputs;
    }
    std::weak_ptr<Core> core;
    ShardedUnit* unit;
    size_t member;
  };
  for (const auto& unit : units) {
    if (!unit->learns()) continue;
    for (size_t i = 0; i < unit->members().size(); ++i) {
      // A tensor has only a weak reference to its accumulator. This reference keeps the accumulator and its hook alive.
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(unit->members()[i].parameter));
      hook_keys_.push_back(
          accumulators_.back()->add_post_hook(std::make_unique<ArrivalHook>(weak_from_this(), *unit, i)));
    }
  }
}

void FullyShardedParameters::Core::remove_hooks() {
  for (size_t i = 0; i < accumulators_.size(); ++i) accumulators_[i]->del_post_hook(hook_keys_[i]);
  accumulators_.clear();
  hook_keys_.clear();
}

void FullyShardedParameters::Core::begin_backward() {
  if (in_backward_ && !backward_alive_.expired()) return;
  if (in_backward_) abort_failed_backward();
  in_backward_ = had_backward_ = true;
  ++backwards;
  for (const auto& unit : units) {
    unit->begin_backward();
    unit->is_complete = unit->is_passed = false;
  }
  next_reduction_ = 0;
  completion_order_.begin_pass();
  backward_alive_ = deferral;
  if (deferral != nullptr) return;
  // The graph task owns its callbacks: if backward throws, they are destroyed uncalled, and the token expires.
  auto token = std::make_shared<char>();
  backward_alive_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback([core = weak_from_this(), token] {
    if (const auto alive = core.lock()) alive->finish_backward();
  });
}

void FullyShardedParameters::Core::arrived(ShardedUnit& unit, size_t member) {
  const std::lock_guard lock(mutex);
  const at::NoGradGuard no_grad;
  begin_backward();
  if (unit.is_reducing()) finish_reduction(unit);  // reached again by a nested backward
  at::Tensor& gradient = unit.members()[member].parameter.mutable_grad();
  if (gradient.defined()) {  // a custom function may return none
    unit.add_gradient(member, gradient, share_);
    gradient.reset();
    ++unit.members()[member].arrivals;
  }
  if (unit.count_arrival(member) && sync) complete(unit);
}

bool FullyShardedParameters::Core::must_reduce(const ShardedUnit& unit) const {
  if (unit.has_local_gradient()) return true;
  // Which parameters are gathered in a forward is the same on all ranks.
  return unit.learns() && !unit.is_reduced_in_forward && (!options.shard_parameters || unit.is_in_forward());
}

// The backward needs the unit no more. If it does after all, the unit is gathered again.
void FullyShardedParameters::Core::complete(ShardedUnit& unit) {
  completion_order_.record(unit.index());
  unit.is_complete = true;
  unit.is_passed ? reduce(unit) : reduce_in_order(/*all=*/false);
  if (!options.shard_parameters || unit.users > 0 || whole_scopes_ > 0) return;
  unit.free();
  std::erase(resident_, &unit);
}

// Ranks may reach units in different orders, or not at all, so each reduces the units in one order.
void FullyShardedParameters::Core::reduce_in_order(bool all) {
  for (; next_reduction_ < reduction_order_.size(); ++next_reduction_) {
    ShardedUnit& unit = *units[static_cast<size_t>(reduction_order_[next_reduction_])];
    const bool is_due = unit.is_complete || must_reduce(unit);
    if (is_due && !unit.is_complete && !all) return;
    if (is_due) reduce(unit);
    unit.is_passed = true;  // a nested backward may reach it again
  }
}

void FullyShardedParameters::Core::reduce(ShardedUnit& unit) {
  with_reduction_context(unit, mesh.world.place(), [&] { unit.start_reduction(mesh.shard); });
  order_.record_reduction(unit.index());
  advance_reductions(&unit);
  unit.is_reduced_in_forward = true;
}

// Sums over the replicas are waited for at the end of the backward, because the links between machines are slow and a
// part is all that they occupy.
void FullyShardedParameters::Core::advance_reductions(const ShardedUnit* newest) {
  for (const auto& unit : units) {
    if (unit.get() == newest || !unit->is_reducing()) continue;
    if (!mesh.has_replicas()) {
      finish_reduction(*unit);
    } else {
      sum_over_replicas(*unit);
    }
  }
}

void FullyShardedParameters::Core::sum_over_replicas(ShardedUnit& unit) {
  if (!unit.is_scattering()) return;
  with_reduction_context(unit, mesh.world.place(), [&] { unit.start_replica_reduction(mesh.replicate); });
}

void FullyShardedParameters::Core::finish_reduction(ShardedUnit& unit) {
  if (mesh.has_replicas()) sum_over_replicas(unit);
  with_reduction_context(unit, mesh.world.place(), [&] { unit.finish_reduction(); });
}

void FullyShardedParameters::Core::finish_backward() {
  const std::lock_guard lock(mutex);
  const at::NoGradGuard no_grad;
  if (in_backward_) {
    try {
      // Units of which the backward did not reach all parameters, and those that wait for them.
      if (sync) reduce_in_order(/*all=*/true);
      for (const auto& unit : units) {  // which nested backwards reached again
        if (sync && unit->has_local_gradient() && !unit->is_reducing()) reduce(*unit);
      }
      advance_reductions(nullptr);
      for (const auto& unit : units) {
        if (unit->is_reducing()) finish_reduction(*unit);
      }
    } catch (...) {
      abort_failed_backward();
      throw;
    }
  }
  in_backward_ = false;
  free_all();
}

void FullyShardedParameters::Core::hold_gradients() {
  const std::lock_guard lock(mutex);
  reduces_held = std::exchange(sync, false);
}

void FullyShardedParameters::Core::release_gradients() {
  const std::lock_guard lock(mutex);
  sync = reduces_held;
  begin_backward();  // if no gradient arrived on this rank, which must reduce zeros then
}

void FullyShardedParameters::Core::abort_failed_backward() noexcept {
  for (const auto& unit : units) unit->drop_local_gradients();
  in_backward_ = false;
  aborted_ = true;
  try {
    free_all();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the caller reports the first error
  }
}

std::string FullyShardedParameters::Core::step_problem() const {
  if (whole_scopes_ > 0) {
    return "a scope of summon_full_params() is open, which would overwrite the step at its end; step outside of it";
  }
  if (const std::string moved = moved_parameter(); !moved.empty()) return moved;
  if (aborted_) {
    return fmt::format(
        "the reduction of the gradients failed, so they differ between the {} ranks; zero them before the next "
        "backward",
        mesh.world.size());
  }
  for (const auto& unit : units) {
    for (const UnitMember& member : unit->members()) {
      if (member.is_filled) {
        return fmt::format(
            "the gradient of parameter {} is this rank's own, not the mean of {} ranks, because its backward ran under "
            "no_sync; run the last backward before a step outside",
            member.name, mesh.world.size());
      }
      if (member.parameter.grad().defined()) {
        return fmt::format(
            "parameter {} has a gradient that was not reduced over the {} ranks; set requires_grad before prepare(), "
            "and do not assign gradients of sharded parameters",
            member.name, mesh.world.size());
      }
    }
  }
  return {};
}

// Ranks that used the units in different orders computed with each other's values, which no backend notices if the
// units have equal sizes. Gathers have one order within a replica, and reductions on all ranks.
void FullyShardedParameters::Core::throw_different_orders(const std::vector<int64_t>& replica_of_rank) {
  const auto histories = mesh.world.all_gather_bytes(order_.history());
  const auto reductions = mesh.world.all_gather_bytes(order_.reduction_history());
  order_.clear_history();
  aborted_ = true;  // the gradients are wrong until they are zeroed
  for (size_t rank = 1; rank < histories.size(); ++rank) {
    const auto first =
        static_cast<size_t>(std::ranges::find(replica_of_rank, replica_of_rank[rank]) - replica_of_rank.begin());
    fail_if_different(histories, first, rank);
  }
  for (size_t rank = 1; rank < reductions.size(); ++rank) fail_if_different(reductions, 0, rank);
  base::fail(ErrorKind::usage, mesh.world.place(), "optimizer.step",
             "the ranks used the units of the sharded model in different orders; use them in one order on all ranks");
}

void FullyShardedParameters::Core::fail_if_different(const std::vector<std::string>& histories, size_t rank,
                                                     size_t other_rank) const {
  if (histories[rank] == histories[other_rank]) return;
  const auto [first, other] = std::ranges::mismatch(histories[rank], histories[other_rank]);
  const auto from = [](const std::string& text, size_t at) {
    const size_t begin = at == 0 ? 0 : text.rfind(',', at - 1) == std::string::npos ? 0 : text.rfind(',', at - 1) + 2;
    const size_t end = std::min(text.find(',', at), text.size());
    return begin >= text.size() ? std::string("nothing more") : text.substr(begin, end - begin);
  };
  const auto at = static_cast<size_t>(first - histories[rank].begin());
  base::fail(
      ErrorKind::usage, mesh.world.place(), "optimizer.step",
      "the ranks used the units of the sharded model in different orders, so they computed with each other's "
      "values, and no optimizer stepped: after the same collectives the next collective of rank {} was '{}', that "
      "of rank {} '{}' (sharding_plan() lists the units); use the parameters in one order on all ranks",
      rank, from(histories[rank], at), other_rank, from(histories[other_rank], at));
}

void FullyShardedParameters::Core::before_step() {
  const std::lock_guard lock(mutex);
  const at::NoGradGuard no_grad;
  if (in_backward_) backward_alive_.expired() ? abort_failed_backward() : finish_backward();
  free_all();
  const std::string problem = step_problem();
  const int64_t words = (static_cast<int64_t>(places.size()) + kBitsPerWord - 1) / kBitsPerWord;
  const int64_t length = kFirstBits + words;
  const at::Tensor mine = at::zeros({length}, at::kLong);
  auto* own = mine.mutable_data_ptr<int64_t>();
  own[kOrder] = order_.hash();
  own[kReductionOrder] = order_.reduction_hash();
  own[kReplica] = mesh.replica;
  own[kHasProblem] = problem.empty() ? 0 : 1;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [unit, member] = places[i];
    if (unit == nullptr || !unit->members()[member].has_gradient) continue;
    own[kFirstBits + static_cast<int64_t>(i) / kBitsPerWord] |= int64_t{1} << (static_cast<int64_t>(i) % kBitsPerWord);
  }
  const at::Tensor all = at::empty({mesh.world.size() * length}, at::kLong);
  comm::with_operation_context("optimizer.step", "the ranks' uses of the parameters are not compared",
                               mesh.world.place(), [&] { mesh.world.all_gather_async(all, mine).wait(); });
  const auto* of_rank = all.const_data_ptr<int64_t>();
  bool any_problem = false, same_order = true;
  std::vector<std::optional<int64_t>> orders(static_cast<size_t>(mesh.replicas));  // of each replica's first rank
  std::vector<int64_t> replica_of_rank;
  for (int64_t rank = 0; rank < mesh.world.size(); ++rank, of_rank += length) {
    replica_of_rank.push_back(of_rank[kReplica]);
    std::optional<int64_t>& order = orders[static_cast<size_t>(replica_of_rank.back())];
    if (!order) order = of_rank[kOrder];
    same_order = same_order && of_rank[kOrder] == order && of_rank[kReductionOrder] == own[kReductionOrder];
    any_problem = any_problem || of_rank[kHasProblem] != 0;
    for (int64_t word = kFirstBits; word < length; ++word) own[word] |= of_rank[word];
  }
  if (any_problem) {
    for (const std::string& one : mesh.world.all_gather_bytes(problem)) {
      if (!one.empty()) base::fail(ErrorKind::usage, mesh.world.place(), "optimizer.step", "{}", one);
    }
  }
  if (!same_order) throw_different_orders(replica_of_rank);
  if (order_.has_reductions()) reduction_order_ = completion_order_.fix(mesh.world, std::ssize(units));
  order_.clear_history();
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [unit, member] = places[i];
    if (unit == nullptr) continue;
    const int64_t word = own[kFirstBits + static_cast<int64_t>(i) / kBitsPerWord];
    unit->members()[member].is_used = ((word >> (static_cast<int64_t>(i) % kBitsPerWord)) & 1) != 0;
  }
  for (const auto& unit : units) {  // of zeros
    if (std::ranges::none_of(unit->members(), &UnitMember::is_used)) unit->gradient().reset();
  }
}

// step() of LibTorch's optimizer finds no gradients, and changes nothing.
void FullyShardedParameters::Core::warn_about_missing_steps(const Keys& keys) {
  constexpr int64_t kMostWithoutStep = 3;
  const auto has_gradient = [&](const UnitMember& member) {
    return member.has_gradient && keys.contains(member.parameter.unsafeGetTensorImpl());
  };
  const auto has_some = [&](const auto& unit) { return std::ranges::any_of(unit->members(), has_gradient); };
  if (was_stepped || !std::ranges::any_of(units, has_some) || ++zeroed_without_step_ < kMostWithoutStep) return;
  base::log_once(base::LogLevel::warning, mesh.world.place(),
                 "zero_grad: sharded gradients were zeroed {} times without a step of the prepared optimizer, so the "
                 "parameters did not change; call step() of the optimizer that prepare() returned, because that of "
                 "LibTorch's optimizer does not reach sharded gradients",
                 zeroed_without_step_);
}

void FullyShardedParameters::Core::zero(const Keys& keys, bool set_to_none) {
  const at::NoGradGuard no_grad;
  warn_about_missing_steps(keys);
  if (in_backward_) backward_alive_.expired() ? abort_failed_backward() : finish_backward();
  bool is_left = false;
  for (const auto& unit : units) {
    bool has_local = false;
    for (size_t i = 0; i < unit->members().size(); ++i) {
      UnitMember& member = unit->members()[i];
      if (keys.contains(member.parameter.unsafeGetTensorImpl())) {
        unit->zero_local_gradient(i, set_to_none);
        member.parameter.mutable_grad().reset();  // of user code: gradients of backwards were moved
        member.stepped_after = -1;
        if (set_to_none) member.has_gradient = member.is_used = false;
      } else {
        is_left = is_left || member.has_gradient;
      }
      has_local = has_local || member.is_filled;
    }
    if (!has_local) unit->drop_local_gradients();
  }
  aborted_ = aborted_ && is_left;
}

}  // namespace accelerate::sharding

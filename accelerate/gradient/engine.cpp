// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/engine.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "accelerate/comm/user_call.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/engine_core.hpp"
#include "accelerate/gradient/same_everywhere.hpp"

namespace accelerate::gradient {
namespace {

std::vector<at::Tensor> distinct(const std::vector<NamedTensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : parameters) {
    if (seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) tensors.push_back(parameter.tensor);
  }
  return tensors;
}

std::vector<ParameterState> trainable(const std::vector<NamedTensor>& parameters, const Place& place) {
  std::unordered_set<const void*> seen;
  std::vector<ParameterState> states;
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (!tensor.is_leaf()) {
      base::fail(ErrorKind::usage, place, "prepare",
                 "parameter {} is the result of an operation, not a leaf: no gradient would be kept for it; register "
                 "the tensor it was computed from",
                 parameter.name);
    }
    states.push_back({.name = parameter.name, .parameter = tensor, .local = tensor.grad().defined()});
  }
  return states;
}

// Locks the state of an engine.
auto locked(Engine::Core& core) { return std::unique_lock(core.mutex); }

}  // namespace

Engine::Engine(comm::Group group, const std::vector<NamedTensor>& parameters, EngineOptions options) {
  check(options.buckets, group.place());
  require_same(group, "parameter", parameters);
  broadcast_tensors(group, distinct(parameters), 0, options.buckets.cap_bytes);
  std::vector<ParameterState> states = trainable(parameters, group.place());
  core_ = std::make_shared<Core>(std::move(group), std::move(states), options);
  core_->hook_up();
}

Engine::~Engine() { retire(); }

void Engine::retire() { core_->unhook(); }

void Engine::forward(bool sync) {
  const auto lock = locked(*core_);
  core_->follow_parameters();
  core_->forgive();
  core_->rule.forward(sync);
}

void Engine::forward_begins() {
  for (ParameterState& state : core_->states) {
    state.unchanged_at_forward = state.imprint && *state.imprint == imprint_of(state.parameter);
  }
}

void Engine::forward_ended() {
  for (ParameterState& state : core_->states) {
    if (state.imprint && state.unchanged_at_forward) state.imprint = imprint_of(state.parameter);
  }
}

void Engine::set_sync(bool sync) { core_->rule.decide(sync); }
void Engine::open_no_sync() { core_->rule.open_no_sync(); }
void Engine::close_no_sync() { core_->rule.close_scope(); }

void Engine::open_window(bool sync) {
  core_->in_window = true;
  core_->rule.decide(sync);
}

void Engine::close_window() {
  core_->in_window = false;
  core_->rule.close_scope();
}

bool Engine::sync() const { return core_->rule.sync(); }
bool Engine::joining() const { return core_->join_coordinator != nullptr; }
bool Engine::touched() const { return core_->touched; }
bool Engine::unreduced() const { return core_->unreduced() != nullptr; }
void Engine::allow_local(bool allowed) { core_->local_allowed = allowed; }
bool Engine::steps_alike() const { return !core_->local_allowed && core_->join_coordinator == nullptr; }
const BucketPlan& Engine::plan() const { return core_->plan; }
const comm::Group& Engine::group() const { return core_->group; }
int64_t Engine::bytes_given() const { return core_->reducer->bytes_given(); }
const BucketReducer& Engine::reducer() const { return *core_->reducer; }

ReducerState Engine::reducer_state() const {
  const auto lock = locked(*core_);
  return core_->reducer->state();
}

void Engine::load_reducer_state(const ReducerState& state) {
  const auto lock = locked(*core_);
  const at::NoGradGuard no_grad;
  core_->complete();
  core_->reducer->load_state(state);
}

void Engine::join_backward() {
  const auto lock = locked(*core_);
  core_->join();
  core_->complete();
}

void Engine::before_step() {
  const auto lock = locked(*core_);
  core_->before_step();
}

void Engine::renew_hooks() {
  const auto lock = locked(*core_);
  const at::NoGradGuard no_grad;
  core_->complete();
  core_->unhook();
  core_->hook_up();
  // The capture must not record the copies of gradients that user code keeps.
  for (ParameterState& state : core_->states) state.release_view();
}

void Engine::abandon() {
  const auto lock = locked(*core_);
  core_->abandon();
}

void Engine::zero_all() {
  const auto lock = locked(*core_);
  core_->zero_all();
}

void Engine::zero(const std::vector<at::Tensor>& parameters, bool set_to_none) {
  const auto lock = locked(*core_);
  core_->complete();
  const at::NoGradGuard no_grad;
  std::vector<bool> stay(set_to_none ? 0 : core_->states.size());
  for (const at::Tensor& parameter : parameters) {
    const auto found = core_->index_of.find(parameter.unsafeGetTensorImpl());
    if (found == core_->index_of.end()) continue;
    set_to_none ? core_->zero(core_->states[found->second]) : void(stay[found->second] = true);
  }
  if (!set_to_none) core_->zero_in_place(std::move(stay));
  core_->forgive();
}

bool Engine::manages(const at::Tensor& parameter) const {
  return core_->index_of.count(parameter.unsafeGetTensorImpl()) > 0;
}

bool Engine::manages_exactly(const std::vector<at::Tensor>& parameters) const {
  std::vector<bool> listed(core_->states.size());
  size_t ours = 0;
  for (const at::Tensor& parameter : parameters) {
    const auto found = core_->index_of.find(parameter.unsafeGetTensorImpl());
    if (found == core_->index_of.end()) {
      if (parameter.grad().defined()) return false;
      continue;
    }
    if (listed[found->second]) return false;  // a list counts a duplicate twice, a bucket only once
    listed[found->second] = true;
    ++ours;
  }
  return ours == core_->states.size();
}

std::vector<at::Tensor> Engine::gradients() {
  const auto lock = locked(*core_);
  return core_->gradients();
}

std::vector<state::Piece> Engine::pieces() {
  const auto lock = locked(*core_);
  return core_->pieces();
}

void run_backward(std::span<Engine* const> engines, const comm::Group& group, const std::function<void()>& backward) {
  std::vector<Engine::Core*> cores;
  for (const Engine* engine : engines) {
    const auto lock = locked(*engine->core_);
    engine->core_->follow_parameters();
    engine->core_->forgive();
    if (engine->core_->rule.sync()) cores.push_back(engine->core_.get());
    engine->core_->rule.backward();
  }
  {
    // If backward throws, the expired token marks the reductions of the engines as failed.
    struct Deferral {
      explicit Deferral(std::vector<Engine::Core*>& the_cores) : cores(the_cores) {
        const auto token = std::make_shared<char>();
        for (Engine::Core* core : cores) core->deferral = token;
      }
      ~Deferral() {
        for (Engine::Core* core : cores) core->deferral.reset();
      }
      std::vector<Engine::Core*>& cores;
    } deferral(cores);
    backward();
  }
  const bool alone = cores.size() == 1;
  const bool uneven = std::any_of(cores.begin(), cores.end(), [](const auto* core) { return core->join_coordinator; });
  at::Tensor reached;
  if (cores.size() > 1 && !uneven) {
    reached = at::zeros({static_cast<int64_t>(cores.size())}, at::kInt);
    for (size_t i = 0; i < cores.size(); ++i) {
      // Gradients that a rank accumulated without a reduction are reduced now, even if no rank's loss reaches the
      // model.
      const auto lock = locked(*cores[i]);
      reached.mutable_data_ptr<int>()[i] = cores[i]->begun() || cores[i]->unreduced() != nullptr ? 1 : 0;
    }
    comm::in_user_call("backward", "which models the loss reaches is not known", group.place(),
                       [&] { group.all_reduce(reached, comm::ReduceOp::max); });
  }
  std::vector<Engine::Core*> taking_part;
  for (size_t i = 0; i < cores.size(); ++i) {
    const bool here = cores[i]->begun();
    const bool anywhere = here || alone || (reached.defined() && reached.const_data_ptr<int>()[i] != 0);
    if (!anywhere) continue;
    const auto lock = locked(*cores[i]);
    if (!here) cores[i]->join();
    cores[i]->launch();
    taking_part.push_back(cores[i]);
  }
  for (Engine::Core* core : taking_part) {
    const auto lock = locked(*core);
    core->finish();
  }
}

}  // namespace accelerate::gradient

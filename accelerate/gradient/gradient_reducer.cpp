// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/gradient_reducer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/gradient_reducer_core.hpp"
#include "accelerate/gradient/verify_parameters.hpp"

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

std::vector<ParameterState> trainable(const std::vector<NamedTensor>& parameters, const RankContext& place) {
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

// Locks the state of a reducer.
auto locked(GradientReducer::Core& core) { return std::unique_lock(core.mutex); }

}  // namespace

GradientReducer::GradientReducer(comm::Group group, const std::vector<NamedTensor>& parameters,
                                 GradientReducerOptions options) {
  check_bucket_options(options.buckets, group.place());
  verify_parameters(group, "parameter", parameters);
  broadcast_tensors(group, distinct(parameters), 0, options.buckets.cap_bytes);
  std::vector<ParameterState> states = trainable(parameters, group.place());
  core_ = std::make_shared<Core>(std::move(group), std::move(states), std::move(options));
  core_->register_hooks();
}

GradientReducer::~GradientReducer() { retire(); }

void GradientReducer::retire() { core_->remove_hooks(); }

void GradientReducer::forward(bool sync) {
  const auto lock = locked(*core_);
  core_->follow_parameters();
  core_->clear_aborted_state();
  core_->rule.forward(sync);
}

void GradientReducer::forward_begins() {
  if (!core_->watches_writes) return;
  core_->watches_writes = false;
  for (ParameterState& state : core_->states) {
    state.writes.begin_forward(state.parameter);
    core_->watches_writes = core_->watches_writes || state.writes.is_armed();
  }
}

void GradientReducer::forward_ended() {
  if (!core_->watches_writes) return;
  for (ParameterState& state : core_->states) state.writes.end_forward(state.parameter);
}

void GradientReducer::set_sync(bool sync) { core_->rule.decide(sync); }
void GradientReducer::open_no_sync() { core_->rule.open_no_sync(); }
void GradientReducer::close_no_sync() { core_->rule.close_scope(); }

void GradientReducer::open_window(bool sync) {
  core_->in_window = true;
  core_->rule.decide(sync);
}

void GradientReducer::close_window() {
  core_->in_window = false;
  core_->rule.close_scope();
}

bool GradientReducer::sync() const { return core_->rule.sync(); }
bool GradientReducer::joining() const { return core_->join_coordinator != nullptr; }
bool GradientReducer::has_pending_gradients() const { return core_->has_pending_gradients; }
bool GradientReducer::first_unreduced() const { return core_->first_unreduced() != nullptr; }
void GradientReducer::set_local_steps_allowed(bool allowed) { core_->local_allowed = allowed; }
bool GradientReducer::steps_in_lockstep() const { return !core_->local_allowed && core_->join_coordinator == nullptr; }
const BucketPlan& GradientReducer::plan() const { return core_->plan; }
const comm::Group& GradientReducer::group() const { return core_->group; }
int64_t GradientReducer::bytes_communicated() const { return core_->reducer->bytes_communicated(); }
const BucketReducer& GradientReducer::reducer() const { return *core_->reducer; }

ReducerState GradientReducer::reducer_state() const {
  const auto lock = locked(*core_);
  return core_->reducer->state();
}

void GradientReducer::load_reducer_state(const ReducerState& state) {
  const auto lock = locked(*core_);
  const at::NoGradGuard no_grad;
  core_->complete();
  core_->reducer->load_state(state);
}

void GradientReducer::join_backward() {
  const auto lock = locked(*core_);
  core_->join();
  core_->complete();
}

void GradientReducer::before_step() {
  const auto lock = locked(*core_);
  core_->before_step();
}

void GradientReducer::renew_hooks() {
  const auto lock = locked(*core_);
  const at::NoGradGuard no_grad;
  core_->complete();
  core_->remove_hooks();
  core_->register_hooks();
  // The capture must not record the copies of gradients that user code keeps.
  for (ParameterState& state : core_->states) state.release_view();
}

void GradientReducer::abandon() {
  const auto lock = locked(*core_);
  core_->abandon();
}

void GradientReducer::zero_all() {
  const auto lock = locked(*core_);
  core_->zero_all();
}

void GradientReducer::zero(const std::vector<at::Tensor>& parameters, bool set_to_none) {
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
  core_->clear_aborted_state();
}

bool GradientReducer::manages(const at::Tensor& parameter) const {
  return core_->index_of.count(parameter.unsafeGetTensorImpl()) > 0;
}

bool GradientReducer::manages_exactly_these(const std::vector<at::Tensor>& parameters) const {
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

std::vector<at::Tensor> GradientReducer::gradients() {
  const auto lock = locked(*core_);
  return core_->gradients();
}

std::vector<state::ParameterShard> GradientReducer::parameter_shards() {
  const auto lock = locked(*core_);
  return core_->parameter_shards();
}

void run_backward(std::span<GradientReducer* const> gradient_reducers, const comm::Group& group,
                  const std::function<void()>& backward) {
  std::vector<GradientReducer::Core*> cores;
  for (const GradientReducer* gradient_reducer : gradient_reducers) {
    const auto lock = locked(*gradient_reducer->core_);
    gradient_reducer->core_->follow_parameters();
    gradient_reducer->core_->clear_aborted_state();
    if (gradient_reducer->core_->rule.sync()) cores.push_back(gradient_reducer->core_.get());
    gradient_reducer->core_->rule.backward();
  }
  {
    // If backward throws, the expired token marks the reductions of the reducers as failed.
    struct Deferral {
      explicit Deferral(std::vector<GradientReducer::Core*>& the_cores) : cores(the_cores) {
        const auto token = std::make_shared<char>();
        for (GradientReducer::Core* core : cores) core->deferral = token;
      }
      ~Deferral() {
        for (GradientReducer::Core* core : cores) core->deferral.reset();
      }
      std::vector<GradientReducer::Core*>& cores;
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
      reached.mutable_data_ptr<int>()[i] = cores[i]->begun() || cores[i]->first_unreduced() != nullptr ? 1 : 0;
    }
    comm::with_operation_context("backward", "it is unknown which models the loss reaches", group.place(),
                                 [&] { group.all_reduce(reached, comm::ReduceOp::max); });
  }
  std::vector<GradientReducer::Core*> taking_part;
  for (size_t i = 0; i < cores.size(); ++i) {
    const bool here = cores[i]->begun();
    const bool anywhere = here || alone || (reached.defined() && reached.const_data_ptr<int>()[i] != 0);
    if (!anywhere) continue;
    const auto lock = locked(*cores[i]);
    if (!here) cores[i]->join();
    cores[i]->launch();
    taking_part.push_back(cores[i]);
  }
  for (GradientReducer::Core* core : taking_part) {
    const auto lock = locked(*core);
    core->finish();
  }
}

}  // namespace accelerate::gradient

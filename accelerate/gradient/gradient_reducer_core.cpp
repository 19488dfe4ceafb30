// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/gradient_reducer_core.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::gradient {

GradientReducer::Core::Core(comm::Group the_group, std::vector<ParameterState> the_states,
                            GradientReducerOptions the_options)
    : group(std::move(the_group)),
      options(std::move(the_options)),
      states(std::move(the_states)),
      reducer(options.hook.reducer(group)) {
  description_ = fmt::format("the gradients of the model ({}) are not averaged",
                             states.empty() ? "none" : comm::first_name_and_count(states.front().name, states.size()));
  for (size_t i = 0; i < states.size(); ++i) index_of.emplace(states[i].parameter.unsafeGetTensorImpl(), i);
  if (options.plan) apply_given_layout();
}

GradientReducer::Core::~Core() = default;

template <typename Collective>
void GradientReducer::Core::for_backward(const Collective& collective) const {
  comm::with_operation_context("backward", description_, group.place(), collective);
}

// A write to a parameter with a local gradient of the window is taken for a step on that gradient.
void GradientReducer::Core::throw_step_inside_window(const ParameterState& state) const {
  if (!state.local || local_allowed || !state.writes.has_changed(state.parameter)) return;
  base::fail(ErrorKind::usage, group.place(), "backward",
             "parameter {} changed within an accumulation window, while its gradient was this rank's own, not the mean "
             "of {} ranks: an optimizer stepped that was not prepared, or the one behind a prepared optimizer; step "
             "what prepare() returned, or step where sync_gradients() is true",
             state.name, group.size());
}

// The mean has no graph, as in c10d::Reducer.
void GradientReducer::Core::warn_of_graph(const ParameterState& state) {
  if (std::exchange(warned_create_graph_, true)) return;
  base::log(base::LogLevel::warning, group.place(),
            "backward: create_graph is set; the gradient of parameter {} is averaged over the {} ranks, its graph is "
            "not: derivatives through it have no effect. Take higher derivatives with "
            "torch::autograd::grad(), and only the last backward through the model",
            state.name, group.size());
}

void GradientReducer::Core::record_local_gradient(ParameterState& state) {
  state.local = true;
  if (in_window) {
    state.writes.arm(state.parameter);
    watches_writes = true;
  }
  // Later gradients accumulate in the bucket, so memory is not doubled.
  if (state.view.defined() && state.used()) state.attach();
}

void GradientReducer::Core::arrived(size_t index) {
  const std::lock_guard lock(mutex);
  ParameterState& state = states[index];
  const bool sync = rule.sync();
  if (sync && at::GradMode::is_enabled()) warn_of_graph(state);
  const at::NoGradGuard no_grad;
  throw_step_inside_window(state);
  has_pending_gradients = true;
  if (!sync) return record_local_gradient(state);
  begin();
  const bool launched = state.bucket >= 0 && static_cast<size_t>(state.bucket) < next_;
  if (state.arrived && launched) {
    base::fail(ErrorKind::usage, group.place(), "backward",
               "parameter {} got a second gradient in one reduction, while the first is on its way to {} ranks; call "
               "backward once per reduction, or all but the last under no_sync",
               state.name, group.size());
  }
  const bool again = std::exchange(state.arrived, true);
  if (buckets.empty()) {
    if (!again) order_.push_back(static_cast<int64_t>(index));
    return;
  }
  if (again) return;
  --(state.sparse_dim == 0 ? buckets[static_cast<size_t>(state.bucket)] : buckets.back()).pending;
  while (early_ && join_coordinator == nullptr && next_ < buckets.size() && buckets[next_].pending == 0) {
    launch_bucket(buckets[next_++]);
  }
}

void GradientReducer::Core::begin() {
  const int id = torch::autograd::get_current_graph_task_id();
  if (reduction_started_ && !backward_alive_.expired()) {
    // In a nested backward (activation checkpointing) weights may get further gradients, so nothing is launched early.
    if (id != graph_task_) early_ = false;
    return;
  }
  complete();
  reduction_started_ = true;
  graph_task_ = id;
  backward_alive_ = deferral;
  if (deferral != nullptr) return;
  // The graph task owns its callbacks: if backward throws, they are destroyed uncalled, and the token expires.
  auto token = std::make_shared<char>();
  backward_alive_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback([core = weak_from_this(), token] {
    if (const auto alive = core.lock()) alive->end_of_backward();
  });
}

void GradientReducer::Core::end_of_backward() {
  const std::lock_guard lock(mutex);
  if (!reduction_started_) return;
  launch();
  // Runs after the callbacks of the other reducers, because all must launch before one waits.
  torch::autograd::Engine::get_default_engine().queue_callback([core = weak_from_this()] {
    if (const auto alive = core.lock()) alive->end_of_launch();
  });
}

void GradientReducer::Core::end_of_launch() {
  const std::lock_guard lock(mutex);
  finish();
}

void GradientReducer::Core::join() {
  follow_parameters();
  complete();
  reduction_started_ = true;
  graph_task_ = -1;
  backward_alive_.reset();
}

void GradientReducer::Core::complete() {
  if (!reduction_started_) return;
  launch();
  finish();
}

void GradientReducer::Core::abandon() {
  if (reduction_started_) {
    reducer->forget();
    reset();
  }
  invalidate_zeroed_views();  // because the captured work did not run
  for (FlatBucket& bucket : buckets) bucket.exposed_to_hook = true;
  zero_all();
}

void GradientReducer::Core::launch() {
  const at::NoGradGuard no_grad;
  // Ranks without batches must be informed first.
  if (!reduction_started_ || join_coordinator != nullptr) return;
  while (next_ < buckets.size()) launch_bucket(buckets[next_++]);
}

void GradientReducer::Core::divide_by(int64_t ranks) {
  if (ranks == divisor_) return;
  divisor_ = ranks;
  share_ = device::Factor(1.0 / static_cast<double>(ranks));
}

// Divides before the sum, as PyTorch does, because float16 then overflows later. The copy into the bucket divides
// without another pass over the memory. If some gradients accumulated in the bucket, the whole bucket is divided at
// once.
void GradientReducer::Core::fill(FlatBucket& bucket) {
  bool accumulated = false;
  for (const int64_t i : bucket.members) {
    ParameterState& state = states[static_cast<size_t>(i)];
    state.contributes = state.used();
    if (!state.contributes || !state.inside()) continue;
    accumulated = true;
    state.count_write();
  }
  for (const int64_t i : bucket.members) {
    ParameterState& state = states[static_cast<size_t>(i)];
    state.contributes ? state.attach(accumulated ? nullptr : &share_) : state.zero_view();
  }
  if (accumulated) bucket.gradients.mul_(share_.tensor());
  // User code that multiplied the whole bucket by infinity or NaN wrote NaN to the gaps.
  if (std::exchange(bucket.exposed_to_hook, false) && !bucket.gaps.empty()) at::_foreach_zero_(bucket.gaps);
}

void GradientReducer::Core::launch_bucket(FlatBucket& bucket) {
  if (join_coordinator == nullptr) divide_by(group.size());
  fill(bucket);
  if (bucket.is_last) {
    for (ParameterState& state : states) {
      if (state.sparse_dim > 0) state.contributes = state.used();
    }
    if (bucket.counts.defined()) write_counts(bucket.counts);
  }
  // run_backward() waits for the last bucket at once, for all reducers in one order.
  const bool waits_at_once = bucket.is_last && deferral != nullptr;
  bucket.share = 1.0 / static_cast<double>(divisor_);
  try {
    for_backward([&] { reducer->start(bucket, waits_at_once ? comm::Execution::deferred : comm::Execution::eager); });
  } catch (...) {
    reduction_aborted = true;  // finish() still completes on all ranks, but steps are refused
    throw;
  }
}

void GradientReducer::Core::finish() {
  const at::NoGradGuard no_grad;
  if (!reduction_started_) return;
  try {
    divide_by(join_coordinator == nullptr ? group.size() : join_coordinator->announce(join_operation).divisor);
    if (buckets.empty()) for_backward([&] { build_layout_from_arrival_order(); });
    while (next_ < buckets.size()) launch_bucket(buckets[next_++]);
    for_backward([&] {
      for (const FlatBucket& bucket : buckets) reducer->finish(bucket);
    });
    finish_unused_parameters();
    for_backward([&] { finish_sparse(1.0 / static_cast<double>(divisor_)); });
    if (options.static_graph) check_static_graph();
  } catch (...) {
    reduction_aborted = true;
    reducer->forget();
    invalidate_zeroed_views();  // views may have partial sums
    reset();
    throw;
  }
  for (ParameterState& state : states) state.mark_synchronized();
  reset();
}

}  // namespace accelerate::gradient

// SPDX-License-Identifier: Apache-2.0
// State between reductions: whether a step is allowed, zeroing, and gradients as flat tensors.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>

#include <algorithm>

#include "accelerate/gradient/gradient_reducer_core.hpp"

namespace accelerate::gradient {

void GradientReducer::Core::reset() {
  reduction_started_ = false;
  has_pending_gradients = false;
  rule.reduced();
  graph_task_ = -1;
  next_ = 0;
  order_.clear();
  for (ParameterState& state : states) {
    state.arrived = false;
    state.contributes = false;
  }
  mark_gradients_pending();
}

void GradientReducer::Core::mark_gradients_pending() {
  if (buckets.empty()) return;  // the first layout failed
  for (FlatBucket& bucket : buckets) bucket.pending = static_cast<int64_t>(bucket.members.size());
  for (const ParameterState& state : states) {
    if (state.sparse_dim > 0) ++buckets.back().pending;
  }
}

const ParameterState* GradientReducer::Core::first_unreduced() const {
  for (const ParameterState& state : states) {
    if (state.used() && (state.local || reduction_aborted || !state.in_place())) return &state;
  }
  return nullptr;
}

void GradientReducer::Core::before_step() {
  follow_parameters();
  complete();
  const ParameterState* state = local_allowed ? nullptr : first_unreduced();
  if (state != nullptr && reduction_aborted) {
    base::fail(ErrorKind::usage, group.place(), "optimizer.step",
               "the reduction of the gradients broke off with an error, so they differ between the {} ranks; zero them "
               "before the next backward",
               group.size());
  }
  if (state != nullptr && !state->local) {
    base::fail(ErrorKind::usage, group.place(), "optimizer.step",
               "the gradient of parameter {} was assigned after the last reduction, so it is this rank's own, not the "
               "mean of {} ranks; assign before a synchronised backward, which averages it too, and change reduced "
               "gradients in place (grad.mul_(), grad.copy_())",
               state->name, group.size());
  }
  if (state != nullptr) {
    base::fail(
        ErrorKind::usage, group.place(), "optimizer.step",
        "the gradient of parameter {} is this rank's own, not the mean of {} ranks: it is from before prepare(), "
        "or no_sync was open at the last model(x) before its backward (model->forward(x) does not count); run "
        "one synchronised backward before the step",
        state->name, group.size());
  }
  if (group.device()) group.check("optimizer.step");  // reductions on the CPU have completed
}

void GradientReducer::Core::zero(ParameterState& state) {
  state.gradient().reset();
  state.mark_synchronized();
}

void GradientReducer::Core::zero_in_place(ParameterState& state) {
  if (!state.used()) return zero(state);
  at::Tensor& gradient = state.gradient();
  if (state.view.defined()) {
    replace_by_view(state);
    state.view.zero_();
  } else {
    // In place, as zero_grad(false) does. A view of autograd cannot be detached in place.
    gradient.is_view() ? void(gradient = gradient.detach()) : void(gradient.detach_());
    gradient.zero_();
  }
  state.mark_synchronized();
}

// A gradient that user code assigned becomes zero too, because user code may still hold it.
void GradientReducer::Core::replace_by_view(ParameterState& state) {
  at::Tensor& gradient = state.gradient();
  if (!state.inside()) {
    state.release_view();
    if (gradient.use_count() > 1 && gradient.is_non_overlapping_and_dense()) gradient.detach().zero_();
  }
  gradient = state.view;
  state.view_is_zero = false;
}

void GradientReducer::Core::clear_aborted_state() {
  reduction_aborted = reduction_aborted && std::any_of(states.begin(), states.end(),
                                                       [](const ParameterState& state) { return state.used(); });
}

void GradientReducer::Core::zero_all() {
  complete();
  reduction_aborted = false;
  for (ParameterState& state : states) zero(state);
}

// Marks the content of the views as unknown.
void GradientReducer::Core::invalidate_zeroed_views() {
  for (ParameterState& state : states) state.view_is_zero = false;
}

std::vector<at::Tensor> GradientReducer::Core::gradients() {
  complete();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (ParameterState& state : states) {
    at::Tensor& gradient = state.gradient();
    if (state.view.defined()) {
      // Gradients that user code dropped or replaced are updated in the bucket; replaced ones count as local.
      state.local = state.local || !state.in_place();
      state.used() ? state.attach() : state.zero_view();
      state.view_is_zero = false;  // the caller may multiply the whole bucket by NaN
      state.count_write();
    } else if (gradient.defined() && gradient.is_sparse()) {
      gradient = gradient.coalesce();
      all.push_back(gradient._values());
    } else if (gradient.defined()) {
      all.push_back(gradient);
    }
  }
  for (FlatBucket& bucket : buckets) {
    if (bucket.gradients.numel() == 0) continue;
    if (!bucket.gaps.empty()) at::_foreach_zero_(bucket.gaps);  // a hook may have written there
    bucket.exposed_to_hook = true;
    all.push_back(bucket.gradients);
  }
  return all;
}

}  // namespace accelerate::gradient

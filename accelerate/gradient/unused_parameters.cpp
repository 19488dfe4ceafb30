// SPDX-License-Identifier: Apache-2.0
// Results of a reduction for parameters that some or all ranks did not use, and for sparse ones.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "accelerate/gradient/gradient_reducer_core.hpp"
#include "accelerate/gradient/sparse.hpp"

namespace accelerate::gradient {

void GradientReducer::Core::write_counts(const at::Tensor& counts) {
  if (std::all_of(states.begin(), states.end(), [](const ParameterState& state) { return state.contributes; })) {
    counts.fill_(1);
    return;
  }
  const at::Tensor mine = at::empty({counts.numel()}, at::kFloat);
  auto* out = mine.mutable_data_ptr<float>();
  for (const ParameterState& state : states) *out++ = state.contributes ? 1.0F : 0.0F;
  counts.copy_(mine, /*non_blocking=*/true);  // safe: pageable memory is read before the call returns
}

// The host waits for the device here, so only ranks with unused parameters call it.
void GradientReducer::Core::read_counts() {
  const at::Tensor sums = buckets.back().counts.to(at::kCPU, at::kFloat);
  const auto* sum = sums.const_data_ptr<float>();
  for (ParameterState& state : states) state.uses = static_cast<int64_t>(*sum++);
}

void GradientReducer::Core::finish_unused_parameters() {
  const auto is_unused = [](const ParameterState& state) { return !state.contributes; };
  if (std::none_of(states.begin(), states.end(), is_unused)) return;
  if (!options.static_graph) read_counts();
  for (size_t i = 0; i < states.size(); ++i) {
    ParameterState& state = states[i];
    if (state.contributes || state.sparse_dim > 0) continue;
    if (state.uses > 0) {
      state.gradient() = state.view;
      state.view_is_zero = false;
    } else {
      state.gradient().reset();
      // the first reduction decided, so this one may have written the view
      if (options.static_graph) state.view_is_zero = false;
      if (options.hook != CommHook()) restore_gradient(i);
    }
  }
}

// With lossy hooks the result may contain errors from earlier reductions.
void GradientReducer::Core::restore_gradient(size_t index) {
  const FlatBucket& bucket = buckets[static_cast<size_t>(states[index].bucket)];
  const auto member = std::ranges::find(bucket.members, static_cast<int64_t>(index)) - bucket.members.begin();
  reducer->restore_gradient(bucket, static_cast<size_t>(member));
  states[index].view_is_zero = false;
}

void GradientReducer::Core::finish_sparse(double factor) {
  for (ParameterState& state : states) {
    if (state.sparse_dim == 0) continue;
    at::Tensor& gradient = state.gradient();
    const at::Tensor mean =
        reduce_sparse(group, state.contributes ? gradient : at::Tensor(), state.parameter, state.sparse_dim, factor);
    gradient = state.contributes || state.uses > 0 ? mean : at::Tensor();
  }
}

// A rank that joins without its own graph cannot check the graph.
void GradientReducer::Core::check_static_graph() const {
  if (!has_pending_gradients) return;
  for (const ParameterState& state : states) {
    if (state.uses != 0 && state.uses != group.size()) {
      base::fail(ErrorKind::usage, group.place(), "backward",
                 "static_graph is set, but parameter {} was used on {} of {} ranks in the first reduction; keep "
                 "static_graph off",
                 state.name, state.uses, group.size());
    }
    if (state.contributes != (state.uses > 0)) {
      base::fail(
          ErrorKind::usage, group.place(), "backward",
          "static_graph is set, but parameter {} was {} in the first reduction and is {} now; keep static_graph off",
          state.name, state.uses > 0 ? "used" : "unused", state.contributes ? "used" : "unused");
    }
  }
}

}  // namespace accelerate::gradient

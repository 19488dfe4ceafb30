// SPDX-License-Identifier: Apache-2.0
// What a reduction needs to know from the other ranks, and what gradients are when it is over.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "accelerate/gradient/engine_core.hpp"
#include "accelerate/gradient/sparse.hpp"

namespace accelerate::gradient {

// One exchange says what the first reduction needs: per state how many ranks have a dense and how many a sparse
// gradient, the axes of the sparse ones, and rank 0's order of arrival.
void Engine::Core::learn_layout() {
  const auto n = static_cast<int64_t>(states.size());
  const at::Tensor report = at::zeros({4, n}, at::kLong);
  auto facts = report.accessor<int64_t, 2>();
  for (int64_t i = 0; i < n; ++i) {
    const ParameterState& state = states[static_cast<size_t>(i)];
    if (!state.used()) continue;
    const bool is_sparse = state.gradient().is_sparse();
    facts[is_sparse ? 1 : 0][i] = 1;
    if (is_sparse) facts[2][i] = state.gradient().sparse_dim();
  }
  if (group.rank() == 0) {
    std::vector<bool> listed(states.size());
    for (const int64_t i : order_) listed[static_cast<size_t>(i)] = true;
    // What did not arrive: backward meets the last registered first.
    for (int64_t i = n - 1; i >= 0; --i) {
      if (!listed[static_cast<size_t>(i)]) order_.push_back(i);
    }
    for (int64_t at = 0; at < n; ++at) facts[3][at] = order_[static_cast<size_t>(at)];
  }
  group.all_reduce(report);

  std::vector<BucketItem> items;
  std::vector<int64_t> dense;
  for (int64_t i = 0; i < n; ++i) {
    ParameterState& state = states[static_cast<size_t>(i)];
    state.uses = facts[0][i] + facts[1][i];
    if (facts[0][i] == 0 && facts[1][i] > 0) state.sparse_dim = facts[2][i] / facts[1][i];
    items.push_back({static_cast<int64_t>(state.parameter.nbytes()), bucket_key(state.parameter)});
  }
  for (int64_t at = 0; at < n; ++at) {
    if (states[static_cast<size_t>(facts[3][at])].sparse_dim == 0) dense.push_back(facts[3][at]);
  }
  plan = plan_buckets(items, dense, options.buckets, group.place());
  buckets = lay_out(states, plan, options.static_graph ? 0 : n);
}

void Engine::Core::write_counts(const at::Tensor& counts) {
  if (std::all_of(states.begin(), states.end(), [](const ParameterState& state) { return state.contributes; })) {
    counts.fill_(1);
    return;
  }
  const at::Tensor mine = at::empty({counts.numel()}, at::kFloat);
  auto* out = mine.mutable_data_ptr<float>();
  for (const ParameterState& state : states) *out++ = state.contributes ? 1.0F : 0.0F;
  counts.copy_(mine);
}

// Makes the host wait for the device, so only ranks that left something unused come here.
void Engine::Core::read_counts() {
  const at::Tensor sums = buckets.back().counts.to(at::kCPU, at::kFloat);
  const auto* sum = sums.const_data_ptr<float>();
  for (ParameterState& state : states) state.uses = static_cast<int64_t>(*sum++);
}

void Engine::Core::settle_unused() {
  const auto is_unused = [](const ParameterState& state) { return !state.contributes; };
  if (std::none_of(states.begin(), states.end(), is_unused)) return;
  if (!options.static_graph) read_counts();
  for (ParameterState& state : states) {
    if (state.contributes || state.sparse_dim > 0) continue;
    if (state.uses > 0) {
      state.gradient() = state.view;
      state.blank = false;
    } else {
      state.gradient().reset();
    }
  }
}

void Engine::Core::settle_sparse(double factor) {
  for (ParameterState& state : states) {
    if (state.sparse_dim == 0) continue;
    at::Tensor& gradient = state.gradient();
    const at::Tensor mean =
        reduce_sparse(group, state.contributes ? gradient : at::Tensor(), state.parameter, state.sparse_dim, factor);
    gradient = state.contributes || state.uses > 0 ? mean : at::Tensor();
  }
}

// A rank that joins without a graph of its own says nothing about the graph.
void Engine::Core::check_static_graph() const {
  if (!touched) return;
  for (const ParameterState& state : states) {
    if (state.uses != 0 && state.uses != group.size()) {
      base::fail(ErrorKind::usage, group.place(), "backward",
                 "static_graph is set, but parameter {} was used on {} of {} ranks in the first reduction; leave "
                 "static_graph off",
                 state.name, state.uses, group.size());
    }
    if (state.contributes != (state.uses > 0)) {
      base::fail(
          ErrorKind::usage, group.place(), "backward",
          "static_graph is set, but parameter {} was {} in the first reduction and is {} now; leave static_graph "
          "off",
          state.name, state.uses > 0 ? "used" : "unused", state.contributes ? "used" : "unused");
    }
  }
}

void Engine::Core::reset() {
  active_ = false;
  touched = false;
  graph_task_ = -1;
  next_ = 0;
  order_.clear();
  for (FlatBucket& bucket : buckets) bucket.pending = static_cast<int64_t>(bucket.members.size());
  for (ParameterState& state : states) {
    state.arrived = false;
    state.contributes = false;
    if (state.sparse_dim > 0) ++buckets.back().pending;
  }
}

const ParameterState* Engine::Core::unreduced() const {
  for (const ParameterState& state : states) {
    if ((state.local || broken_off) && state.used()) return &state;
  }
  return nullptr;
}

void Engine::Core::before_step() {
  complete();
  const ParameterState* state = local_allowed ? nullptr : unreduced();
  if (state != nullptr && broken_off) {
    base::fail(ErrorKind::usage, group.place(), "optimizer.step",
               "the reduction of the gradients broke off with an error, so they differ between the {} ranks; zero them "
               "before the next backward",
               group.size());
  }
  if (state != nullptr) {
    base::fail(
        ErrorKind::usage, group.place(), "optimizer.step",
        "the gradient of parameter {} is this rank's own, not the mean of {} ranks: it is from before prepare(), "
        "or no_sync was open at the last model(x) before its backward (model->forward(x) does not count); run "
        "one synchronised backward before the step",
        state->name, group.size());
  }
}

void Engine::Core::zero(ParameterState& state) {
  state.local = false;
  state.gradient().reset();
}

void Engine::Core::zero_in_place(ParameterState& state) {
  if (!state.used()) return zero(state);
  state.local = false;
  at::Tensor& gradient = state.gradient();
  if (state.view.defined()) {
    state.view.zero_();
    state.blank = false;
    gradient = state.view;
  } else {
    gradient = gradient.detach();
    gradient.zero_();
  }
}

void Engine::Core::forgive() {
  broken_off =
      broken_off && std::any_of(states.begin(), states.end(), [](const ParameterState& state) { return state.used(); });
}

void Engine::Core::zero_all() {
  complete();
  broken_off = false;
  for (ParameterState& state : states) zero(state);
}

std::vector<at::Tensor> Engine::Core::gradients() {
  complete();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (ParameterState& state : states) {
    at::Tensor& gradient = state.gradient();
    if (state.view.defined()) {
      // What user code dropped or replaced must show in the bucket.
      state.used() ? state.attach() : state.blank_out();
    } else if (gradient.defined() && gradient.is_sparse()) {
      gradient = gradient.coalesce();
      all.push_back(gradient._values());
    } else if (gradient.defined()) {
      all.push_back(gradient);
    }
  }
  for (const FlatBucket& bucket : buckets) {
    if (bucket.gradients.numel() > 0) all.push_back(bucket.gradients);
  }
  return all;
}

}  // namespace accelerate::gradient

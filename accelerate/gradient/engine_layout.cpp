// SPDX-License-Identifier: Apache-2.0
// What the first reduction learns from the other ranks: how the gradients lie in buckets.
#include <ATen/ops/zeros.h>

#include "accelerate/gradient/engine_core.hpp"

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

void Engine::Core::forget_layout() {
  for (ParameterState& state : states) state.leave_bucket();
  buckets.clear();
  plan = {};
}

}  // namespace accelerate::gradient

// SPDX-License-Identifier: Apache-2.0
// The first reduction: the ranks agree on the layout of the buckets.
#include <ATen/ops/zeros.h>

#include "accelerate/gradient/gradient_reducer_core.hpp"

namespace accelerate::gradient {
namespace {

void check_given(const BucketPlan& plan, const std::vector<ParameterState>& states, const RankContext& place) {
  std::vector<int64_t> listed(states.size());
  for (const Bucket& bucket : plan.buckets) {
    for (const int64_t i : bucket.items) {
      if (i < 0 || i >= static_cast<int64_t>(states.size())) {
        base::fail(ErrorKind::usage, place, "prepare",
                   "the bucket plan lists parameter {}, there are {} that need a gradient: indices go from 0 to {}", i,
                   states.size(), static_cast<int64_t>(states.size()) - 1);
      }
      const auto& state = states[static_cast<size_t>(i)];
      const auto& first = states[static_cast<size_t>(bucket.items.front())];
      ++listed[static_cast<size_t>(i)];
      if (bucket_key(state.parameter) != bucket_key(first.parameter)) {
        base::fail(ErrorKind::usage, place, "prepare",
                   "the bucket plan puts parameter {} ({}) into the bucket of {} ({}); a bucket is of one dtype and "
                   "device",
                   state.name, bucket_key(state.parameter), first.name, bucket_key(first.parameter));
      }
    }
  }
  for (size_t i = 0; i < states.size(); ++i) {
    if (listed[i] == 1) continue;
    base::fail(ErrorKind::usage, place, "prepare", "the bucket plan lists parameter {} ({}) {} times; list it once", i,
               states[i].name, listed[i]);
  }
}

}  // namespace

// One exchange provides all data for the first reduction: per state the number of ranks with a dense and with a sparse
// gradient, the sparse axes, and rank 0's order of arrival.
void GradientReducer::Core::build_layout_from_arrival_order() {
  if (options.plan) return apply_given_layout();
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
    // Appends missing states in reverse order, because backward usually reaches the last registered parameter first.
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
  buckets = lay_out(states, plan, options.static_graph ? 0 : n, group.size());
}

void GradientReducer::Core::apply_given_layout() {
  if (options.static_graph) {
    base::fail(ErrorKind::usage, group.place(), "prepare",
               "static_graph determines the used parameters in the first reduction, which does not happen with a "
               "bucket plan; remove one of them");
  }
  check_given(*options.plan, states, group.place());
  plan = *options.plan;
  std::erase_if(plan.buckets, [](const Bucket& bucket) { return bucket.items.empty(); });
  buckets = lay_out(states, plan, static_cast<int64_t>(states.size()), group.size());
  mark_gradients_pending();
}

void GradientReducer::Core::forget_layout() {
  reducer->forget();
  for (ParameterState& state : states) state.detach_from_bucket();
  buckets.clear();
  plan = {};
}

}  // namespace accelerate::gradient

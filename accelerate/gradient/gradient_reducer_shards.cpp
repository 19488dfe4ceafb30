// SPDX-License-Identifier: Apache-2.0
// Parameters of the reducer as shards for optimizers, and zeroing of whole buckets.
#include <algorithm>

#include "accelerate/gradient/gradient_reducer_core.hpp"

namespace accelerate::gradient {

std::vector<state::ParameterShard> GradientReducer::Core::parameter_shards() {
  complete();
  std::vector<state::ParameterShard> all;
  const auto add = [&](const ParameterState& state) {
    all.push_back(state::whole_parameter(state.name, state.parameter));
  };
  for (const FlatBucket& bucket : buckets) {
    for (const int64_t i : bucket.members) add(states[static_cast<size_t>(i)]);
  }
  for (const ParameterState& state : states) {
    if (!state.view.defined()) add(state);
  }
  return all;
}

// Zeroes a bucket as a whole if all its gradients are listed, otherwise one by one.
void GradientReducer::Core::zero_in_place(std::vector<bool> listed) {
  for (FlatBucket& bucket : buckets) {
    const auto is_listed = [&](int64_t i) { return listed[static_cast<size_t>(i)]; };
    const auto free_to_fill = [&](int64_t i) {
      const ParameterState& state = states[static_cast<size_t>(i)];
      return is_listed(i) || !state.used() || !state.inside();
    };
    const auto is_zeroed_here = [&](int64_t i) { return is_listed(i) && states[static_cast<size_t>(i)].used(); };
    if (std::none_of(bucket.members.begin(), bucket.members.end(), is_zeroed_here)) continue;
    if (!std::all_of(bucket.members.begin(), bucket.members.end(), free_to_fill)) continue;
    // A transposed or conjugated alias of the view that replaced the gradient also holds the view.
    for (const int64_t i : bucket.members) states[static_cast<size_t>(i)].release_view();
    bucket.gradients.zero_();
    for (const int64_t i : bucket.members) {
      ParameterState& state = states[static_cast<size_t>(i)];
      state.view_is_zero = !is_zeroed_here(i);
      if (is_zeroed_here(i)) {
        replace_by_view(state);
        state.count_write();
      }
      if (is_listed(i)) state.mark_synchronized();
      listed[static_cast<size_t>(i)] = false;
    }
  }
  for (size_t i = 0; i < states.size(); ++i) {
    if (listed[i]) zero_in_place(states[i]);
  }
}

}  // namespace accelerate::gradient

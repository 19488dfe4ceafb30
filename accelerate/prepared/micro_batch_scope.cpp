// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/micro_batch_scope.hpp"

namespace accelerate::prepared {

void MicroBatchScope::begin_backward(const state::BatchInfo* loop, int64_t steps, const RankContext& place) {
  const bool could_be_nested = opened_in_ != nullptr && loop != opened_in_;
  if (open_ > 0 && !could_be_nested && backwards_ > 0 && steps > 1 && loop != nullptr && loop == loop_ &&
      loop->index != batch_) {
    base::fail(
        ErrorKind::usage, place, "backward",
        "this is backward {} in one accumulate() scope, and the loader has handed out another batch since "
        "backward {}; a scope is one micro-batch (gradient_accumulation_steps is {}), so no optimizer would step "
        "in this loop. Open the scope in the loop's body: for (auto& batch : loader) {{ auto window = "
        "accelerator.accumulate(model); ... }}",
        backwards_ + 1, backwards_, steps);
  }
  ++backwards_since_step_;
  ++backwards_;
  loop_ = loop;
  batch_ = loop == nullptr ? -1 : loop->index;
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/sync_schedule.hpp"

namespace accelerate::gradient {

SyncDecision next_micro_batch(const SyncState& state, const SyncOptions& options, bool last_batch,
                              const RankContext& place) {
  const int64_t k = options.steps;
  if (k < 1) {
    base::fail(ErrorKind::usage, place, "accumulate", "gradient_accumulation_steps is {}, must be at least 1", k);
  }
  const bool cut = options.sync_with_dataloader && last_batch;
  const int64_t step = cut ? 0 : state.step + 1;
  const int64_t window = state.window + 1;
  const bool sync = cut || step % k == 0;
  const bool is_short = sync && window < k && options.short_window == ShortWindow::true_length;
  return {.sync = sync,
          .reduce = sync || options.sync_each_batch,
          .scale = is_short ? static_cast<double>(k) / static_cast<double>(window) : 1.0,
          .next = {.step = step, .window = sync ? 0 : window}};
}

}  // namespace accelerate::gradient

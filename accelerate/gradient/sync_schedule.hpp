// SPDX-License-Identifier: Apache-2.0
// Rules of accumulate(): when to reduce, when to step, and the factor of a short last window.
#pragma once

#include <cstdint>

#include "accelerate/base/error.hpp"

namespace accelerate::gradient {

/// Weight of the last window of an epoch if it has m < k micro-batches. The loss of each
/// micro-batch is divided by k, before the number m is known.
enum class ShortWindow {
  true_length,  ///< gradients are multiplied by k/m, so that the window has the weight of the others
  full_length,  ///< as in Accelerate: gradients stay divided by k, so the window has less weight
};

struct SyncOptions {
  /// k, the number of micro-batches per optimizer step.
  int64_t steps = 1;
  /// If true, the last batch of the loader ends its window.
  bool sync_with_dataloader = true;
  /// If true, reduces every micro-batch (less memory with sharding); steps are still at the ends of windows.
  bool sync_each_batch = false;
  ShortWindow short_window = ShortWindow::true_length;
};

/// State between micro-batches.
struct SyncState {
  /// Accelerate's counter. The end of a loader resets it to 0.
  int64_t step = 0;
  /// Number of micro-batches since the last optimizer step.
  int64_t window = 0;
  bool operator==(const SyncState&) const = default;
};

struct SyncDecision {
  /// True if the optimizer steps after this micro-batch (Accelerate's sync_gradients).
  bool sync = true;
  /// True if this micro-batch's backward reduces the gradients.
  bool reduce = true;
  /// Factor of the reduced gradients of this micro-batch: k/m at the end of a short window, otherwise 1.
  double scale = 1.0;
  /// State for the next call.
  SyncState next{};
  bool operator==(const SyncDecision&) const = default;
};

/// Decides for one micro-batch. Pure function. Accelerate's rule: at the last batch step := 0 and sync; otherwise
/// step += 1 and sync := step mod k == 0.
///
/// \param last_batch  The active loader returned its last batch (known one batch ahead); false without a loader.
/// \param options     May change between calls.
[[nodiscard]] SyncDecision next_micro_batch(const SyncState& state, const SyncOptions& options, bool last_batch,
                                            const RankContext& place = {});

}  // namespace accelerate::gradient

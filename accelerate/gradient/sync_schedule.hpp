// SPDX-License-Identifier: Apache-2.0
// The rule of accumulate(): which micro-batch reduces, which one steps, and the factor of a short last window.
#pragma once

#include <cstdint>

#include "accelerate/base/error.hpp"

namespace accelerate::gradient {

/// How the last window of an epoch counts when it has m < k micro-batches. backward() always divides the loss by k.
enum class ShortWindow {
  true_length,  ///< its gradients are multiplied by k/m, so that it weighs like every other window
  full_length,  ///< Accelerate's way: left divided by k, so it weighs less
};

struct SyncOptions {
  /// k: micro-batches summed into one optimizer step.
  int64_t steps = 1;
  /// The last batch of the loader ends its window.
  bool sync_with_dataloader = true;
  /// Reduces every micro-batch (less memory with sharding); steps stay at the ends of windows.
  bool sync_each_batch = false;
  ShortWindow short_window = ShortWindow::true_length;
};

/// What is carried from one micro-batch to the next.
struct SyncState {
  /// Accelerate's counter: back to 0 where a loader ends, else counts on.
  int64_t step = 0;
  /// Micro-batches since the last optimizer step.
  int64_t window = 0;
  bool operator==(const SyncState&) const = default;
};

struct SyncDecision {
  /// The optimizer steps after this micro-batch (Accelerate's sync_gradients).
  bool sync = true;
  /// Gradients are reduced in this micro-batch's backward.
  bool reduce = true;
  /// Multiplied into the reduced gradients of this micro-batch: k/m at the end of a short window, else 1.
  double scale = 1.0;
  /// To be given to the next call.
  SyncState next{};
  bool operator==(const SyncDecision&) const = default;
};

/// Decides for one micro-batch. Pure function. Accelerate's rule: at the last batch step := 0 and sync; otherwise
/// step += 1 and sync := step mod k == 0.
///
/// \param last_batch  The active loader returned its last batch (known one batch ahead); false without a loader.
/// \param options     May change between calls.
[[nodiscard]] SyncDecision next_micro_batch(const SyncState& state, const SyncOptions& options, bool last_batch,
                                            const Place& place = {});

}  // namespace accelerate::gradient

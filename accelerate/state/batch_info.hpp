// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace accelerate::state {

/// Where a loop over a loader stands. A loader writes it, gather_for_metrics and accumulate read it.
struct BatchInfo {
  /// Number of the batch the user holds, from 0. -1: outside a loop.
  int64_t index = -1;
  /// The user holds this rank's last batch of the pass. Known when the batch is handed out, not afterwards.
  bool last = false;
  /// Real samples in the last global batch (rank 0's, then rank 1's ...), the rest of it is filling: samples mod
  /// (world_size * batch_size). 0: nothing was filled, nothing is to be cut. -1: not known, or drop_last.
  int64_t remainder = -1;
  /// The ranks' samples lie in strides: row i of rank r is the (i * world_size + r)-th of the global batch.
  bool strided = false;

  bool operator==(const BatchInfo&) const = default;
};

}  // namespace accelerate::state

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace accelerate::state {

/// Position of a loop over a loader. Written by the loader, read by gather_for_metrics and accumulate.
struct BatchInfo {
  /// Index of the current batch, from 0; -1 outside a loop.
  int64_t index = -1;
  /// True if the current batch is this rank's last one of the pass. Known while the batch is in use, not only
  /// afterwards.
  bool last = false;
  /// Number of real samples in the last global batch (rank 0's, then rank 1's, ...): samples mod (world_size *
  /// batch_size); the rest is padding. 0 if there is no padding. -1 if unknown or with drop_last.
  int64_t remainder = -1;
  /// True if samples are interleaved: row i of rank r is row (i * world_size + r) of the global batch.
  bool strided = false;

  bool operator==(const BatchInfo&) const = default;
};

}  // namespace accelerate::state

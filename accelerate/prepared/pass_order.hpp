// SPDX-License-Identifier: Apache-2.0
// The start of the pass over a loader that draws its order from the CPU generator, for checkpoints.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/prepared/loader_rng.hpp"

namespace accelerate::prepared {

/// Start of the latest pass over one loader, through any of its handles. A resumed run uses it to skip the first
/// batches of the same order.
class PassOrder {
 public:
  /// Records the start of a pass.
  /// \returns The number of the pass.
  int64_t begin(const PassStart& start) {
    start_ = start;
    loaded_.reset();
    return ++passes_;
  }
  /// Must be called when that pass has no further batch.
  void end(int64_t pass) {
    if (pass == passes_) start_.reset();
  }
  /// Restores the start from a checkpoint. It is unset if the checkpoint was saved between two passes.
  void load(const std::optional<PassStart>& saved) {
    start_ = loaded_ = saved;
    ++passes_;  // passes that are open now end without effect
  }
  /// Returns the start that the next pass must repeat. If unset, the pass draws a new order.
  ///
  /// \param skips  The pass skips its first batches. A pass that skips none draws a new order, also after a load.
  [[nodiscard]] std::optional<PassStart> to_repeat(bool skips) const { return skips ? loaded_ : std::nullopt; }
  /// Returns the start for a checkpoint. Unset if the latest pass has ended.
  [[nodiscard]] const std::optional<PassStart>& start() const { return start_; }

 private:
  std::optional<PassStart> start_;
  std::optional<PassStart> loaded_;
  int64_t passes_ = 0;
};

}  // namespace accelerate::prepared

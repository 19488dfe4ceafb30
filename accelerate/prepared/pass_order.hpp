// SPDX-License-Identifier: Apache-2.0
// The start of the pass over a loader that draws its order from the CPU generator, for checkpoints.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/prepared/loader_random.hpp"

namespace accelerate::prepared {

/// The start of the latest pass over one loader, whichever of its handles began the pass. With it a resumed run skips
/// the first batches of the same order.
class PassOrder {
 public:
  /// A pass began there. \returns  Its number.
  int64_t begin(const PassStart& start) {
    start_ = start;
    loaded_.reset();
    return ++passes_;
  }
  /// The pass of that number has no further batch.
  void end(int64_t pass) {
    if (pass == passes_) start_.reset();
  }
  /// A checkpoint was loaded. Unset: it was saved between two passes.
  void load(const std::optional<PassStart>& saved) {
    start_ = loaded_ = saved;
    ++passes_;  // passes that are open now end without effect
  }
  /// The start that the next pass has to repeat. If unset, the pass draws a new order.
  ///
  /// \param skips  The pass skips its first batches. A pass that skips none is a new one, also after a load.
  [[nodiscard]] std::optional<PassStart> to_repeat(bool skips) const { return skips ? loaded_ : std::nullopt; }
  /// For a checkpoint. Unset if the latest pass has ended.
  [[nodiscard]] const std::optional<PassStart>& start() const { return start_; }

 private:
  std::optional<PassStart> start_;
  std::optional<PassStart> loaded_;
  int64_t passes_ = 0;
};

}  // namespace accelerate::prepared

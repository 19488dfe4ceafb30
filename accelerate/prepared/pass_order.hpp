// SPDX-License-Identifier: Apache-2.0
// The starts of the passes over a loader that draws its order from the CPU generator, for checkpoints.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/prepared/loader_rng.hpp"

namespace accelerate::prepared {

/// Starts of the passes over one loader, through any of its handles. A resumed run uses one to skip the first batches
/// of the same order.
///
/// Passes may be nested: a checkpoint contains the start of the open pass that began last. If no pass is open, it
/// contains the start of a pass that was left before its end, until the next pass begins.
class PassOrder {
 public:
  /// Records the start of a pass.
  /// \returns The number of the pass.
  int64_t begin(const PassStart& start) {
    open_.push_back({++passes_, start});
    left_.reset();
    loaded_.reset();
    return passes_;
  }
  /// Must be called when that pass has no further batch.
  void end(int64_t pass) { close(pass); }
  /// Must be called when that pass is destroyed. Does nothing after end().
  void leave(int64_t pass) {
    const auto start = close(pass);
    if (start && open_.empty()) left_ = start;
  }
  /// Restores the start from a checkpoint. It is unset if the checkpoint was saved between two passes. Passes that are
  /// open no longer count.
  void load(const std::optional<PassStart>& saved) {
    left_ = loaded_ = saved;
    open_.clear();
  }
  /// Returns the start that the next pass must repeat. If unset, the pass draws a new order.
  ///
  /// \param skips  The pass skips its first batches. A pass that skips none draws a new order, also after a load.
  [[nodiscard]] std::optional<PassStart> to_repeat(bool skips) const { return skips ? loaded_ : std::nullopt; }
  /// Returns the start for a checkpoint. Unset between two passes.
  [[nodiscard]] std::optional<PassStart> start() const { return open_.empty() ? left_ : open_.back().start; }

 private:
  struct Pass {
    int64_t number;
    PassStart start;
  };

  std::optional<PassStart> close(int64_t pass) {
    const auto found = std::ranges::find(open_, pass, &Pass::number);
    if (found == open_.end()) return std::nullopt;
    const PassStart start = found->start;
    open_.erase(found);
    return start;
  }

  std::vector<Pass> open_;         // in the order in which they began
  std::optional<PassStart> left_;  // also a loaded start, until the next pass begins
  std::optional<PassStart> loaded_;
  int64_t passes_ = 0;
};

}  // namespace accelerate::prepared

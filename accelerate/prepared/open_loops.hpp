// SPDX-License-Identifier: Apache-2.0
// The loops over prepared loaders that are under way.
#pragma once

#include <algorithm>
#include <vector>

#include "accelerate/state/batch_info.hpp"

namespace accelerate::prepared {

/// Each pass holds its BatchInfo; this list refers to them, innermost last.
class OpenLoops {
 public:
  /// Where the innermost loop stands; null outside every loop.
  [[nodiscard]] const state::BatchInfo* innermost() const { return loops_.empty() ? nullptr : loops_.back().info; }

  /// Where the innermost loop over that loader stands; {-1, false, -1} outside.
  [[nodiscard]] state::BatchInfo of(const void* loader) const {
    const auto found =
        std::find_if(loops_.rbegin(), loops_.rend(), [&](const Loop& loop) { return loop.loader == loader; });
    return found == loops_.rend() ? state::BatchInfo{} : *found->info;
  }

 private:
  friend class OpenLoop;
  struct Loop {
    const void* loader;
    const state::BatchInfo* info;
  };
  std::vector<Loop> loops_;
};

/// Keeps one loop on the list while it lives. Loops need not end in the order in which they began.
class OpenLoop {
 public:
  /// list, info   outlive it
  OpenLoop(OpenLoops& list, const void* loader, const state::BatchInfo& info) : list_(list), info_(&info) {
    list_.loops_.push_back({loader, info_});
  }
  ~OpenLoop() {
    std::erase_if(list_.loops_, [this](const auto& loop) { return loop.info == info_; });
  }
  OpenLoop(const OpenLoop&) = delete;
  OpenLoop& operator=(const OpenLoop&) = delete;

 private:
  OpenLoops& list_;
  const state::BatchInfo* info_;
};

}  // namespace accelerate::prepared

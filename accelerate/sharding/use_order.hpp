// SPDX-License-Identifier: Apache-2.0
// Private: the order in which a pass uses the units of a model.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::sharding {

/// Records the first uses of units in a pass, a forward or a backward, until the first step. Thread-safe. An order that
/// no later pass has costs time only.
class UseOrder {
 public:
  /// Begins a pass, so that uses before it do not count.
  void begin_pass();
  /// Must be called for each use of a unit.
  void record(int64_t unit) {
    if (!is_fixed_.load(std::memory_order_acquire)) add(unit);
  }
  /// Returns rank 0's order of all units, the same on all ranks. Units that its pass did not use are at the end. The
  /// first call is collective; later ones return the same order.
  [[nodiscard]] const std::vector<int64_t>& fix(const comm::Group& group, int64_t units);

 private:
  void add(int64_t unit);

  std::mutex mutex_;
  std::atomic<bool> is_fixed_ = false;
  std::vector<int64_t> order_;
};

}  // namespace accelerate::sharding

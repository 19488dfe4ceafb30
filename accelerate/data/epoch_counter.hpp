// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

/// Counts epochs by passes that began. A pass that ends early counts as its epoch.
class EpochCounter {
 public:
  /// Largest epoch: the random numbers of samples (SampleRandom) use 32 bits of it.
  static constexpr int64_t kMaxEpoch = (int64_t{1} << 32) - 1;

  /// Current epoch, or between passes the next one.
  [[nodiscard]] int64_t epoch() const { return epoch_; }
  /// True if a pass of epoch() began.
  [[nodiscard]] bool begun() const { return begun_; }

  /// Prepares a pass. The pass only counts after begin(), because preparing it may fail.
  void next() {
    if (std::exchange(begun_, false)) ++epoch_;
  }
  void begin() { begun_ = true; }
  /// Ends a pass of that epoch. Returns false if it is no longer the current one, after set() or a later begin().
  bool end(int64_t ended) {
    if (epoch_ != ended || !begun_) return false;
    ++epoch_;
    begun_ = false;
    return true;
  }
  /// \throws Error (usage) if epoch is negative or above `kMaxEpoch`.
  void set(int64_t epoch) {
    if (epoch < 0) base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, must be at least 0", epoch);
    if (epoch > kMaxEpoch)
      base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, must be at most {}", epoch, kMaxEpoch);
    epoch_ = epoch;
    begun_ = false;
  }

 private:
  int64_t epoch_ = 0;
  bool begun_ = false;
};

}  // namespace accelerate::data

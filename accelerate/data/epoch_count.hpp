// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

/// Counts epochs by passes that began: one that was left early counts as its epoch.
class EpochCount {
 public:
  /// Random numbers of samples (SampleRandom) have 32 bits for it.
  static constexpr int64_t most = (int64_t{1} << 32) - 1;

  /// The epoch under way, or between passes the next one's.
  [[nodiscard]] int64_t epoch() const { return epoch_; }
  /// A pass of it began.
  [[nodiscard]] bool begun() const { return begun_; }

  /// A pass is about to begin; it has begun once begin() is called, for one that cannot begin is none.
  void next() {
    if (std::exchange(begun_, false)) ++epoch_;
  }
  void begin() { begun_ = true; }
  /// A pass of that epoch ended. returns   whether it was the one under way: not after set(), or once another began
  bool end(int64_t ended) {
    if (epoch_ != ended || !begun_) return false;
    ++epoch_;
    begun_ = false;
    return true;
  }
  /// \throws Error (usage) for a negative epoch, and one above `most`.
  void set(int64_t epoch) {
    if (epoch < 0) base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, must be at least 0", epoch);
    if (epoch > most) base::fail(ErrorKind::usage, {}, "set_epoch", "epoch is {}, must be at most {}", epoch, most);
    epoch_ = epoch;
    begun_ = false;
  }

 private:
  int64_t epoch_ = 0;
  bool begun_ = false;
};

}  // namespace accelerate::data

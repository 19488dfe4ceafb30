// SPDX-License-Identifier: Apache-2.0
// Private: how a collective tells ranks that have run out of batches that it comes.
#pragma once

#include <cstdint>

namespace accelerate::gradient {

struct JoinCoordinator {
  struct Answer {
    int64_t divisor;  ///< what a sum over the ranks is divided by
    int64_t root;     ///< the highest rank that still has batches
  };
  virtual ~JoinCoordinator() = default;
  virtual Answer announce(int64_t operation) = 0;
};

}  // namespace accelerate::gradient

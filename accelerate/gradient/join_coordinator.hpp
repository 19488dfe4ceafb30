// SPDX-License-Identifier: Apache-2.0
// Private: announces collectives to ranks without batches.
#pragma once

#include <cstdint>

namespace accelerate::gradient {

struct JoinCoordinator {
  struct Answer {
    int64_t divisor;  ///< divisor of a sum over the ranks
    int64_t root;     ///< the highest rank that still has batches
  };
  virtual ~JoinCoordinator() = default;
  virtual Answer announce(int64_t operation) = 0;
};

}  // namespace accelerate::gradient

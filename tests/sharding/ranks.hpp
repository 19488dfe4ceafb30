// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, each with an Accelerator.
#pragma once

#include <cstdint>
#include <functional>

#include "accelerate/accelerate.hpp"

namespace sharding_testing {

inline void with_ranks(int64_t ranks, const accelerate::AcceleratorOptions& options,
                       const std::function<void(accelerate::Accelerator&)>& run) {
  accelerate::simulate(ranks, [&] {
    accelerate::Accelerator accelerator(options);
    run(accelerator);
  });
}

}  // namespace sharding_testing

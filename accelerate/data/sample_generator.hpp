// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Random numbers for one sample with LibTorch's functions: torch::randn({3}, sample_generator(pass, i)). They depend
/// only on seed, epoch, random layer and the sample's number, not on the number of workers and ranks.
///
/// \note Without a generator, LibTorch uses the process-wide one. Workers and training share it, so its numbers depend
///       on timing.
[[nodiscard]] at::Generator sample_generator(const ReadContext& pass, int64_t sample);

}  // namespace accelerate::data

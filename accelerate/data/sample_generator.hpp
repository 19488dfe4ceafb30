// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Random numbers for one sample by LibTorch's own functions: torch::randn({3}, sample_generator(pass, i)). They depend
/// on the seed, the epoch, the random layer and the sample's number and on nothing else: the same at any number of
/// workers and ranks, others in the next epoch.
///
/// What is drawn without a generator comes from the one of the process, which all workers and the training share: such
/// numbers depend on who is faster.
[[nodiscard]] at::Generator sample_generator(const ReadContext& pass, int64_t sample);

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace accelerate::data {

/// The order in which one epoch visits the samples.
///
/// returns   [samples] int64 on the CPU: 0, 1, 2 ..., or shuffled what torch.randperm gives with a CPU generator seeded
///           seed + epoch. Depends on nothing else, so every rank computes the same one.
[[nodiscard]] at::Tensor epoch_order(int64_t samples, bool shuffle, uint64_t seed, int64_t epoch);

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// Random numbers: seeds, generator states, deterministic operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/base/error.hpp"

namespace accelerate::device {

struct SeedOptions {
  /// If true, rank r uses seed + r, so that every rank draws different numbers.
  bool device_specific = false;
  /// If true, operators use their deterministic implementation, which is slower, and throw if they have none.
  bool deterministic = false;
};

/// Returns the seed of a rank that draws its own numbers: seed + rank.
uint64_t rank_seed(uint64_t seed, int64_t rank);

/// Seeds the default generators of the CPU and of all GPUs of this process.
void seed_all(uint64_t seed);

/// Seeds this rank. Without device_specific all ranks draw the same numbers: parameters then start equal even before
/// prepare(). Call seed_all(rank_seed(seed, rank)) afterwards for dropout that differs between ranks.
///
/// deterministic also sets CUBLAS_WORKSPACE_CONFIG unless it is set: call it before the first use of a GPU.
void set_seed(uint64_t seed, const SeedOptions& options, int64_t rank);

/// Same as PyTorch's use_deterministic_algorithms(on), including cuDNN.
void set_deterministic(bool on);

/// Returns the state of the device's default generator: uint8 [n] on the CPU, with n = 5056 (CPU) or 16 (GPU).
at::Tensor rng_state(c10::Device device);

/// \param state  Result of rng_state() for a device of the same type. \throws Error (usage) for another shape or dtype.
void set_rng_state(c10::Device device, const at::Tensor& state, const RankContext& place = {});

}  // namespace accelerate::device

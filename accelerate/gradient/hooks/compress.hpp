// SPDX-License-Identifier: Apache-2.0
// Gradients that travel as half-precision numbers: half the bytes of float32.
#pragma once

#include <c10/core/ScalarType.h>

#include "accelerate/gradient/bucket_reducer.hpp"

namespace accelerate::gradient {

/// Float16 between the ranks: 11 bits of each gradient; beyond 65504 it overflows to infinity. PyTorch's
/// fp16_compress_hook.
[[nodiscard]] CommHook fp16_compress_hook();
/// Bfloat16 between the ranks: 8 bits of each gradient, float32's range. PyTorch's bf16_compress_hook.
[[nodiscard]] CommHook bf16_compress_hook();

/// Sends the hook's data as 16-bit numbers: fp16_compress_wrapper(power_sgd_hook()). Buckets with gradients of at most
/// 16 bits, or complex ones, are passed to the hook unchanged.
[[nodiscard]] CommHook fp16_compress_wrapper(CommHook hook);
[[nodiscard]] CommHook bf16_compress_wrapper(CommHook hook);

}  // namespace accelerate::gradient

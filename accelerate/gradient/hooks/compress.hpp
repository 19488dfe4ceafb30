// SPDX-License-Identifier: Apache-2.0
// Sends gradients in half precision: half the bytes of float32.
#pragma once

#include <c10/core/ScalarType.h>

#include "accelerate/gradient/bucket_reducer.hpp"

namespace accelerate::gradient {

/// PyTorch's fp16_compress_hook: sends float16, with 11 bits of precision. Values beyond 65504 overflow to infinity.
[[nodiscard]] CommHook fp16_compress_hook();
/// PyTorch's bf16_compress_hook: sends bfloat16, with 8 bits of precision and float32's range.
[[nodiscard]] CommHook bf16_compress_hook();

/// Sends the hook's data as 16-bit numbers: fp16_compress_wrapper(power_sgd_hook()). Buckets with gradients of at most
/// 16 bits, or complex ones, are passed to the hook unchanged.
[[nodiscard]] CommHook fp16_compress_wrapper(CommHook hook);
[[nodiscard]] CommHook bf16_compress_wrapper(CommHook hook);

}  // namespace accelerate::gradient

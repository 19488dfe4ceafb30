// SPDX-License-Identifier: Apache-2.0
// Work on many samples at a time, cut into parts for several threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace accelerate::data {

/// Bytes that one thread writes before a second one pays.
inline constexpr int64_t kBytesOfPart = 1 << 19;

/// Calls part(first, count) for all of numbers' elements: on LibTorch's threads, at least `grain` elements each; in a
/// loader's worker on that one alone, because the workers share the cores already. What a part throws comes out.
///
/// numbers   [n], only counted
void in_parts(const at::Tensor& numbers, int64_t grain, c10::function_ref<void(int64_t first, int64_t count)> part);

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
// Work on many samples at a time, cut into parts for several threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace accelerate::data {

/// Bytes that one thread writes before a second one pays.
inline constexpr int64_t kBytesOfPart = 1 << 19;

/// Calls part(first, count) for all elements of `numbers`, on LibTorch's threads with at least `grain` elements each;
/// in a loader's worker only on that thread, because the workers already share the cores. Exceptions are rethrown.
///
/// \param numbers  [n], only its size is used.
void in_parts(const at::Tensor& numbers, int64_t grain, c10::function_ref<void(int64_t first, int64_t count)> part);

}  // namespace accelerate::data

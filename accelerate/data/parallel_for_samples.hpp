// SPDX-License-Identifier: Apache-2.0
// Divides work on many samples among several threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace accelerate::data {

/// Minimum number of bytes per thread for which a second thread pays off.
inline constexpr int64_t kBytesOfPart = 1 << 19;

/// Calls part(first, count) for all elements of `numbers`, on LibTorch's threads with at least `grain` elements each.
/// In a loader's worker only that thread is used, because the workers already share the cores. Exceptions are rethrown.
///
/// \param numbers  [n], only its size is used.
void parallel_for_samples(const at::Tensor& numbers, int64_t grain,
                          c10::function_ref<void(int64_t first, int64_t count)> part);

}  // namespace accelerate::data

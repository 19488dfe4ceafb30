// SPDX-License-Identifier: Apache-2.0
// Splits CPU work into parts for LibTorch's threads.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace accelerate::device {

/// Calls part(first, count) for 0 to count - 1 on LibTorch's threads, including the calling thread, with at least
/// `grain` indices each. Exceptions of a part are rethrown. at::parallel_for() is a template that runs on one thread in
/// code compiled without OpenMP flags, as this library and its users' code are.
void parallel_for(int64_t count, int64_t grain, c10::function_ref<void(int64_t first, int64_t count)> part);

}  // namespace accelerate::device

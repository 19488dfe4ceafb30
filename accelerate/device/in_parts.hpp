// SPDX-License-Identifier: Apache-2.0
// Work on the CPU, cut into parts for LibTorch's threads.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace accelerate::device {

/// Calls part(first, count) for all of 0 to count - 1, on LibTorch's threads, at least `grain` each; the caller's is
/// one of them. What a part throws comes out. What at::parallel_for() is within LibTorch: that one is a template, which
/// in code without OpenMP in its own flags, ours and its users', runs on one thread.
void in_parts(int64_t count, int64_t grain, c10::function_ref<void(int64_t first, int64_t count)> part);

}  // namespace accelerate::device

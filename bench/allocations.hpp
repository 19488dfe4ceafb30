// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace bench {

/// Heap allocations of this process so far, in every thread and library: malloc, calloc, realloc and the aligned ones.
int64_t allocations();

}  // namespace bench

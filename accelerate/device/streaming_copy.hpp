// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace accelerate::device {

/// memcpy() that writes past the caches, for copies that are much larger than the caches. An ordinary write reads its
/// cache line from memory first, so it moves a third more bytes. The result is visible to other threads after a
/// synchronisation with this one. Processors other than x86-64 use memcpy().
void streaming_copy(char* to, const char* from, size_t bytes);

}  // namespace accelerate::device

// SPDX-License-Identifier: Apache-2.0
// The element-wise reduction of two buffers, for the backends that reduce by themselves.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

/// into[i] = into[i] (op) from[i] for i < count. dtype is one that wire_format_of gives; op is not mean.
void reduce_into(void* into, const void* from, int64_t count, at::ScalarType dtype, ReduceOp op);

}  // namespace accelerate::comm

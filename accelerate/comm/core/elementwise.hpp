// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of two buffers, for backends that reduce on the CPU themselves.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

/// True for the dtypes of reduce_into().
bool has_reduction(at::ScalarType dtype);

/// Computes into[i] = into[i] (op) from[i] for i < count. `dtype` must be a result of wire_format_of(); `op` must not
/// be mean.
void reduce_into(void* into, const void* from, int64_t count, at::ScalarType dtype, ReduceOp op);

}  // namespace accelerate::comm

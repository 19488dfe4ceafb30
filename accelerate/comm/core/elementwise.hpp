// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of two buffers, for backends that reduce on the CPU themselves.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

/// True for the dtypes of reduce_into().
bool has_reduction(at::ScalarType dtype);

/// Position of an operand. The order matters for the bits of NaN, and for the sign of a zero in max and min.
enum class Side { left, right };

/// Computes into[i] = into[i] (op) from[i] for i < count, or from[i] (op) into[i] if `from` is on the left side.
/// `dtype` must be a result of wire_format_of(); `op` must not be mean.
void reduce_into(void* into, const void* from, int64_t count, at::ScalarType dtype, ReduceOp op,
                 Side side = Side::right);

}  // namespace accelerate::comm

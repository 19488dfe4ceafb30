// SPDX-License-Identifier: Apache-2.0
// How a reduction of any dtype becomes one that every backend knows.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

/// The same reduction in terms of u8, i8, i32, i64, f16, bf16, f32 or f64. Pure; plan_reduction makes it.
struct ReductionPlan {
  /// How the bytes are handed over: as they are, reinterpreted (bool as u8, complex as pairs of reals), or converted.
  enum class Passage { same, reinterpret, convert } passage = Passage::same;
  at::ScalarType dtype = at::kFloat;  ///< on the wire
  ReduceOp op = ReduceOp::sum;        ///< on the wire; never mean
  bool divide = false;                ///< by the group's size afterwards

  bool operator==(const ReductionPlan&) const = default;
};

/// sum of bool is "or", product and min are "and". Nothing for what has no meaning: the mean of integers, an order of
/// complex numbers.
std::optional<ReductionPlan> plan_reduction(at::ScalarType dtype, ReduceOp op);

std::string_view name(ReduceOp op);

}  // namespace accelerate::comm

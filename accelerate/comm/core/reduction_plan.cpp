// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/reduction_plan.hpp"

#include <c10/core/ScalarType.h>

namespace accelerate::comm {
namespace {

using Passage = ReductionPlan::Passage;

ReductionPlan with_mean(Passage passage, at::ScalarType dtype, ReduceOp op) {
  const bool mean = op == ReduceOp::mean;
  return {.passage = passage, .dtype = dtype, .op = mean ? ReduceOp::sum : op, .divide = mean};
}

std::optional<ReductionPlan> plan_integer(at::ScalarType dtype, ReduceOp op) {
  const bool ordered = op == ReduceOp::max || op == ReduceOp::min;
  if (op == ReduceOp::mean) return std::nullopt;
  switch (dtype) {
    case at::kBool:
      return ReductionPlan{.passage = Passage::reinterpret,
                           .dtype = at::kByte,
                           .op = op == ReduceOp::sum || op == ReduceOp::max ? ReduceOp::max : ReduceOp::min};
    case at::kShort:
    case at::kUInt16:
      return ReductionPlan{.passage = Passage::convert, .dtype = at::kInt, .op = op};
    case at::kUInt32:
      return ReductionPlan{.passage = Passage::convert, .dtype = at::kLong, .op = op};
    case at::kUInt64:  // two's complement sums and products are the same bits
      if (ordered) return std::nullopt;
      return ReductionPlan{.passage = Passage::reinterpret, .dtype = at::kLong, .op = op};
    default:
      return ReductionPlan{.dtype = dtype, .op = op};
  }
}

}  // namespace

std::optional<ReductionPlan> plan_reduction(at::ScalarType dtype, ReduceOp op) {
  if (c10::isComplexType(dtype)) {
    if (op != ReduceOp::sum && op != ReduceOp::mean) return std::nullopt;
    return with_mean(Passage::reinterpret, c10::toRealValueType(dtype), op);
  }
  if (c10::isReducedFloatingType(dtype) && dtype != at::kHalf && dtype != at::kBFloat16) {
    return with_mean(Passage::convert, at::kFloat, op);  // the 8-bit floats
  }
  if (c10::isFloatingType(dtype)) return with_mean(Passage::same, dtype, op);
  if (c10::isIntegralType(dtype, /*includeBool=*/true)) return plan_integer(dtype, op);
  return std::nullopt;
}

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

}  // namespace accelerate::comm

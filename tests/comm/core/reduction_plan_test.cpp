// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/reduction_plan.hpp"

#include "tests/testing.hpp"

using namespace accelerate::comm;

TEST_CASE("a reduction of any dtype becomes one that every backend knows") {
  using Passage = ReductionPlan::Passage;
  const auto same = [](at::ScalarType dtype, ReduceOp op, bool divide) {
    return ReductionPlan{.passage = Passage::same, .dtype = dtype, .op = op, .divide = divide};
  };
  CHECK((plan_reduction(at::kFloat, ReduceOp::sum) == same(at::kFloat, ReduceOp::sum, false)));
  CHECK((plan_reduction(at::kBFloat16, ReduceOp::mean) == same(at::kBFloat16, ReduceOp::sum, true)));
  CHECK((plan_reduction(at::kLong, ReduceOp::max) == same(at::kLong, ReduceOp::max, false)));
  CHECK((plan_reduction(at::kBool, ReduceOp::sum) ==
         ReductionPlan{.passage = Passage::reinterpret, .dtype = at::kByte, .op = ReduceOp::max}));
  CHECK((plan_reduction(at::kBool, ReduceOp::product) ==
         ReductionPlan{.passage = Passage::reinterpret, .dtype = at::kByte, .op = ReduceOp::min}));
  CHECK((plan_reduction(at::kShort, ReduceOp::min) ==
         ReductionPlan{.passage = Passage::convert, .dtype = at::kInt, .op = ReduceOp::min}));
  CHECK((plan_reduction(at::kComplexDouble, ReduceOp::mean) ==
         ReductionPlan{.passage = Passage::reinterpret, .dtype = at::kDouble, .op = ReduceOp::sum, .divide = true}));
  CHECK((plan_reduction(at::kFloat8_e4m3fn, ReduceOp::sum) ==
         ReductionPlan{.passage = Passage::convert, .dtype = at::kFloat, .op = ReduceOp::sum}));
  for (const auto dtype : {at::kLong, at::kBool, at::kByte, at::kUInt64}) {
    CHECK_FALSE(plan_reduction(dtype, ReduceOp::mean));
  }
  CHECK_FALSE(plan_reduction(at::kComplexFloat, ReduceOp::max));
  CHECK_FALSE(plan_reduction(at::kUInt64, ReduceOp::min));
}

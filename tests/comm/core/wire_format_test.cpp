// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/wire_format.hpp"

#include "tests/testing.hpp"

using namespace accelerate::comm;

TEST_CASE("a reduction of any dtype is mapped to one that every backend supports") {
  using Passage = WireFormat::Passage;
  const auto same = [](at::ScalarType dtype, ReduceOp op, bool divide) {
    return WireFormat{.passage = Passage::same, .dtype = dtype, .op = op, .divide = divide};
  };
  CHECK((wire_format_of(at::kFloat, ReduceOp::sum) == same(at::kFloat, ReduceOp::sum, false)));
  CHECK((wire_format_of(at::kBFloat16, ReduceOp::mean) == same(at::kBFloat16, ReduceOp::sum, true)));
  CHECK((wire_format_of(at::kLong, ReduceOp::max) == same(at::kLong, ReduceOp::max, false)));
  CHECK((wire_format_of(at::kBool, ReduceOp::sum) ==
         WireFormat{.passage = Passage::reinterpret, .dtype = at::kByte, .op = ReduceOp::max}));
  CHECK((wire_format_of(at::kBool, ReduceOp::product) ==
         WireFormat{.passage = Passage::reinterpret, .dtype = at::kByte, .op = ReduceOp::min}));
  CHECK((wire_format_of(at::kShort, ReduceOp::min) ==
         WireFormat{.passage = Passage::convert, .dtype = at::kInt, .op = ReduceOp::min}));
  CHECK((wire_format_of(at::kComplexDouble, ReduceOp::mean) ==
         WireFormat{.passage = Passage::reinterpret, .dtype = at::kDouble, .op = ReduceOp::sum, .divide = true}));
  CHECK((wire_format_of(at::kHalf, ReduceOp::sum) == same(at::kHalf, ReduceOp::sum, false)));
  CHECK((wire_format_of(at::kHalf, ReduceOp::mean) ==
         WireFormat{.passage = Passage::convert, .dtype = at::kFloat, .op = ReduceOp::sum, .divide = true}));
  CHECK((wire_format_of(at::kFloat8_e4m3fn, ReduceOp::sum) ==
         WireFormat{.passage = Passage::convert, .dtype = at::kFloat, .op = ReduceOp::sum}));
  for (const auto dtype : {at::kLong, at::kBool, at::kByte, at::kUInt64}) {
    CHECK_FALSE(wire_format_of(dtype, ReduceOp::mean));
  }
  CHECK_FALSE(wire_format_of(at::kComplexFloat, ReduceOp::max));
  CHECK_FALSE(wire_format_of(at::kUInt64, ReduceOp::min));
}

TEST_CASE("a reduction survives the round trip through c10d; others are refused with the backend's name") {
  for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
    CHECK(reduce_op_name(from_c10d(to_c10d(op), "mpi")) == reduce_op_name(op));
  }
  CHECK_THROWS_WITH(static_cast<void>(from_c10d(c10d::ReduceOp::BXOR, "mpi")),
                    "the mpi backend reduces by sum, product, min and max");
}

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/wire_format.hpp"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace accelerate::comm {
namespace {

using Passage = WireFormat::Passage;

/// The only table of reductions. A new reduction is added here.
constexpr std::array<std::pair<ReduceOp, c10d::ReduceOp::RedOpType>, 4> kReduceOps{
    {{ReduceOp::sum, c10d::ReduceOp::SUM},
     {ReduceOp::max, c10d::ReduceOp::MAX},
     {ReduceOp::min, c10d::ReduceOp::MIN},
     {ReduceOp::product, c10d::ReduceOp::PRODUCT}}};

WireFormat with_mean(Passage passage, at::ScalarType dtype, ReduceOp op) {
  const bool mean = op == ReduceOp::mean;
  return {.passage = passage, .dtype = dtype, .op = mean ? ReduceOp::sum : op, .divide = mean};
}

std::optional<WireFormat> format_of_integer(at::ScalarType dtype, ReduceOp op) {
  const bool ordered = op == ReduceOp::max || op == ReduceOp::min;
  if (op == ReduceOp::mean) return std::nullopt;
  switch (dtype) {
    case at::kBool:
      return WireFormat{.passage = Passage::reinterpret,
                        .dtype = at::kByte,
                        .op = op == ReduceOp::sum || op == ReduceOp::max ? ReduceOp::max : ReduceOp::min};
    case at::kShort:
    case at::kUInt16:
      return WireFormat{.passage = Passage::convert, .dtype = at::kInt, .op = op};
    case at::kUInt32:
      return WireFormat{.passage = Passage::convert, .dtype = at::kLong, .op = op};
    case at::kUInt64:  // two's complement sums and products are the same bits
      if (ordered) return std::nullopt;
      return WireFormat{.passage = Passage::reinterpret, .dtype = at::kLong, .op = op};
    default:
      return WireFormat{.dtype = dtype, .op = op};
  }
}

}  // namespace

std::optional<WireFormat> wire_format_of(at::ScalarType dtype, ReduceOp op) {
  if (c10::isComplexType(dtype)) {
    if (op != ReduceOp::sum && op != ReduceOp::mean) return std::nullopt;
    return with_mean(Passage::reinterpret, c10::toRealValueType(dtype), op);
  }
  if (c10::isReducedFloatingType(dtype) && dtype != at::kHalf && dtype != at::kBFloat16) {
    return with_mean(Passage::convert, at::kFloat, op);  // the 8-bit floats
  }
  if (dtype == at::kHalf && op == ReduceOp::mean) {
    return with_mean(Passage::convert, at::kFloat, op);  // the sum may overflow although the mean does not
  }
  if (c10::isFloatingType(dtype)) return with_mean(Passage::same, dtype, op);
  if (c10::isIntegralType(dtype, /*includeBool=*/true)) return format_of_integer(dtype, op);
  return std::nullopt;
}

std::string_view reduce_op_name(ReduceOp op) {
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

c10d::ReduceOp to_c10d(ReduceOp op) {
  for (const auto& [ours, theirs] : kReduceOps) {
    if (ours == op) return theirs;
  }
  return c10d::ReduceOp::SUM;
}

std::optional<ReduceOp> known_reduce_op(const c10d::ReduceOp& op) {
  for (const auto& [ours, theirs] : kReduceOps) {
    if (theirs == op.op_) return ours;
  }
  return std::nullopt;
}

ReduceOp from_c10d(const c10d::ReduceOp& op, std::string_view backend) {
  if (const auto known = known_reduce_op(op)) return *known;
  throw std::invalid_argument(fmt::format("the {} backend reduces by sum, product, min and max", backend));
}

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
// Our reductions and c10d's: the one table.
#pragma once

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>

#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

/// mean has no row: on the wire it is a sum that is divided afterwards.
inline constexpr std::array<std::pair<ReduceOp, c10d::ReduceOp::RedOpType>, 4> kReduceOps{
    {{ReduceOp::sum, c10d::ReduceOp::SUM},
     {ReduceOp::max, c10d::ReduceOp::MAX},
     {ReduceOp::min, c10d::ReduceOp::MIN},
     {ReduceOp::product, c10d::ReduceOp::PRODUCT}}};

inline c10d::ReduceOp to_c10d(ReduceOp op) {
  for (const auto& [ours, theirs] : kReduceOps) {
    if (ours == op) return theirs;
  }
  return c10d::ReduceOp::SUM;
}

/// backend   named where it does not know the reduction
inline ReduceOp from_c10d(const c10d::ReduceOp& op, std::string_view backend) {
  for (const auto& [ours, theirs] : kReduceOps) {
    if (theirs == op.op_) return ours;
  }
  throw std::invalid_argument(fmt::format("the {} backend reduces by sum, product, min and max", backend));
}

}  // namespace accelerate::comm

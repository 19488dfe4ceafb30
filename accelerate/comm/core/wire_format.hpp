// SPDX-License-Identifier: Apache-2.0
// How a reduction of any dtype travels: as one that every backend knows, in c10d's terms.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

/// The same reduction in terms of u8, i8, i32, i64, f16, bf16, f32 or f64. Pure; wire_format_of makes it.
struct WireFormat {
  /// How the bytes are handed over: as they are, reinterpreted (bool as u8, complex as pairs of reals), or converted.
  enum class Passage { same, reinterpret, convert } passage = Passage::same;
  at::ScalarType dtype = at::kFloat;  ///< on the wire
  ReduceOp op = ReduceOp::sum;        ///< on the wire; never mean
  bool divide = false;                ///< by the group's size afterwards

  bool operator==(const WireFormat&) const = default;
};

/// The sum of bool is "or"; product and min are "and". Returns nothing for meaningless combinations: the mean of
/// integers, or max and min of complex numbers.
std::optional<WireFormat> wire_format_of(at::ScalarType dtype, ReduceOp op);

std::string_view name(ReduceOp op);

/// As c10d calls it. Not of mean: on the wire that is a sum, which is divided afterwards.
c10d::ReduceOp to_c10d(ReduceOp op);
/// The inverse conversion, for our own backends.
///
/// \param backend  Name for the error message if it does not support the reduction.
ReduceOp from_c10d(const c10d::ReduceOp& op, std::string_view backend);

}  // namespace accelerate::comm

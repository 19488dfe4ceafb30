// SPDX-License-Identifier: Apache-2.0
// Maps a reduction of any dtype to one that every backend supports, in c10d's terms.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

/// The equivalent reduction of u8, i8, i32, i64, f16, bf16, f32 or f64. Created by wire_format_of().
struct WireFormat {
  /// Transfer of the bytes: unchanged, reinterpreted (bool as u8, complex as pairs of reals), or converted.
  enum class Passage { same, reinterpret, convert } passage = Passage::same;
  at::ScalarType dtype = at::kFloat;  ///< on the wire
  ReduceOp op = ReduceOp::sum;        ///< on the wire; never mean
  bool divide = false;                ///< divide by the group's size afterwards

  bool operator==(const WireFormat&) const = default;
};

/// The sum of bool is "or"; product and min are "and". Returns nothing for meaningless combinations: the mean of
/// integers, or max and min of complex numbers.
std::optional<WireFormat> wire_format_of(at::ScalarType dtype, ReduceOp op);

std::string_view reduce_op_name(ReduceOp op);

/// Converts to c10d's reduction. Not for mean, which is a sum on the wire, divided afterwards.
c10d::ReduceOp to_c10d(ReduceOp op);
/// The inverse conversion; nothing for a reduction that the library does not have.
std::optional<ReduceOp> known_reduce_op(const c10d::ReduceOp& op);
/// As above, for the library's own backends.
///
/// \param backend  Name for the error message if the backend does not support the reduction.
ReduceOp from_c10d(const c10d::ReduceOp& op, std::string_view backend);

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
// Private: sparse gradients are gathered, not summed in place.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/comm/group.hpp"

namespace accelerate::gradient {

/// The sum over all ranks times factor, coalesced and sparse, the same on every rank.
///
/// gradient    sparse, dense, or undefined for a rank that has none
/// parameter   for shape, dtype and device
/// sparse_dim  leading axes that the indices cover
[[nodiscard]] at::Tensor reduce_sparse(const comm::Group& group, const at::Tensor& gradient,
                                       const at::Tensor& parameter, int64_t sparse_dim, double factor);

}  // namespace accelerate::gradient

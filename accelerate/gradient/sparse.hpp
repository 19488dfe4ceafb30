// SPDX-License-Identifier: Apache-2.0
// Private: sparse gradients are gathered, not summed in place.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/comm/group.hpp"

namespace accelerate::gradient {

/// Returns the sum over all ranks times factor, coalesced and sparse, equal on every rank.
///
/// \param gradient    Sparse, dense, or undefined on a rank without one.
/// \param parameter   Provides shape, dtype and device.
/// \param sparse_dim  Number of leading axes that the indices cover.
[[nodiscard]] at::Tensor reduce_sparse(const comm::Group& group, const at::Tensor& gradient,
                                       const at::Tensor& parameter, int64_t sparse_dim, double factor);

}  // namespace accelerate::gradient

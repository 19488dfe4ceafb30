// SPDX-License-Identifier: Apache-2.0
// Collectives of a tensor parallel group with gradients: the steps between layers that are split over its ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

// All ranks of the group call these functions, and run backward through them, equally often and in the same order.
// Sizes must be equal on all ranks. Results must not be modified in place, because some share memory with the input.
// Each function is the backward of another one, so they can be differentiated any number of times.
//
// \throws Error (peer) if a rank is lost or late, from the call or from backward.

/// Start of a split region: identity in forward, sum of the gradients over all ranks in backward.
///
/// \param input  Equal on all ranks; any shape.
at::Tensor copy_to_group(const at::Tensor& input, const comm::Group& group);

/// End of a split region: sum over all ranks in forward, identity in backward.
///
/// \param input  This rank's summand; any shape.
at::Tensor reduce_from_group(const at::Tensor& input, const comm::Group& group);

/// This rank's part in forward; the gradients of all parts, joined, in backward.
///
/// \param input  Equal on all ranks.
/// \param dim    Dimension that is split; negative numbers count from the end.
/// \throws Error (usage) if the size of the dimension is not divisible by the number of ranks.
at::Tensor scatter_to_group(const at::Tensor& input, int64_t dim, const comm::Group& group);

/// The parts of all ranks, joined in rank order, in forward; this rank's part of the gradient in backward. For
/// consumers that compute the same on all ranks, so that their gradients are equal.
at::Tensor gather_from_group(const at::Tensor& input, int64_t dim, const comm::Group& group);

/// The parts of all ranks, joined in rank order, in forward; this rank's part of the sum of all gradients in backward.
/// For consumers that are split over the ranks: a layer after a sequence parallel region.
at::Tensor gather_sequence_from_group(const at::Tensor& input, int64_t dim, const comm::Group& group);

/// This rank's part of the sum over all ranks in forward; the gradients of all parts, joined, in backward: the start of
/// a sequence parallel region.
///
/// \throws Error (usage) if the size of the dimension is not divisible by the number of ranks.
at::Tensor reduce_scatter_to_group(const at::Tensor& input, int64_t dim, const comm::Group& group);

}  // namespace accelerate::nn

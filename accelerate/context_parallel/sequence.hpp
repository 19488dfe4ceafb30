// SPDX-License-Identifier: Apache-2.0
// The parts of a sequence that the ranks of a context parallel group compute.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// Returns this rank's part of a sequence. A sequence of T tokens has 2P chunks on P ranks, and rank r has the chunks r
/// and 2P - 1 - r. With causal attention all ranks then compute equally many scores, as in PyTorch's context parallel.
/// Not collective.
///
/// \param tensor  Equal on all ranks: tokens, targets, positions or embeddings.
/// \param dim     Dimension of the sequence; negative numbers count from the end.
/// \returns T / P tokens in their own memory; in a group of one rank the tensor itself. Gradients flow back to
///          `tensor`.
/// \throws Error (usage) if the tensor has no such dimension, or if T is not divisible by 2P.
[[nodiscard]] at::Tensor split_sequence(const comm::Group& group, const at::Tensor& tensor, int64_t dim);

/// Returns the whole sequence in its order, on every rank. Inverse of split_sequence(). Backward sums the gradients of
/// all ranks, so that a loss of the whole sequence that each rank computes has the right gradients after their average.
///
/// Collective, forward and backward. All ranks of the group call it in the same order as the other functions of
/// context parallelism on this group.
///
/// \param part  Part of split_sequence(), with the same shape and dtype on all ranks.
/// \param dim   Dimension of the sequence; negative numbers count from the end.
/// \throws Error (usage) if the tensor has no such dimension, or an odd number of tokens; Error (peer) if a rank is
///         lost or late, or if the shapes differ.
[[nodiscard]] at::Tensor merge_sequence(const comm::Group& group, const at::Tensor& part, int64_t dim);

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of logits with classes split over the ranks of a tensor parallel group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/comm/group.hpp"
#include "accelerate/nn/linear_cross_entropy.hpp"

namespace accelerate::nn {

struct VocabParallelCrossEntropyOptions {
  /// Rows with this target have no loss and no gradient.
  int64_t ignore_index = -100;
  /// Part of the target's probability that is spread evenly over all classes, from 0 to 1.
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
};

/// cross_entropy_loss of logits of which each rank has its classes. No rank holds the logits of all classes: two
/// all-reduces of 1 and 2 numbers for each row (3 with label smoothing) in forward, none in backward.
///
/// All ranks of the group call it with equal targets, in the same order. The losses are computed in float32 (float64
/// for float64 logits).
///
/// \param logits  This rank's part, [..., classes / P]; rank r has the r-th part of the classes.
/// \param target  Class of each row, int64, in the shape of logits without its last dimension.
/// \returns the loss, float32 or float64, equal on all ranks: a scalar, or the shape of target for Reduction::none. The
///          mean is NaN if all rows are ignored or there is no row.
/// \throws Error (usage) if shapes, dtypes or options do not fit, and on the CPU if a target is not a class. Backward
///         throws for `create_graph`: there is no second derivative.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const comm::Group& group,
                                        const VocabParallelCrossEntropyOptions& options = {});

/// vocab_parallel_cross_entropy(linear(x, weight)): the last layer of a language model and its loss. The gradient of x
/// is summed over the ranks while the gradient of the weight is computed.
///
///   auto loss = vocab_parallel_linear_cross_entropy(hidden, embedding->weight, tokens, group);   // tied to the
///                                                                                               // embedding
///
/// \param x       Hidden states, [..., features], equal on all ranks.
/// \param weight  This rank's part, [classes / P, features].
at::Tensor vocab_parallel_linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                                               const comm::Group& group,
                                               const VocabParallelCrossEntropyOptions& options = {});

}  // namespace accelerate::nn

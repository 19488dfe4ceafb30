// SPDX-License-Identifier: Apache-2.0
// Private: the product of a linear layer that is split over the ranks of a group, with its collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// Which part of a linear layer a rank has, and what is exchanged.
enum class LinearSplit {
  column,           ///< output features; the gradient of the input is summed over the ranks
  column_sequence,  ///< as column; the input is a part of the sequence, which is gathered
  row,              ///< input features; the output is summed over the ranks
  row_sequence,     ///< as row; each rank keeps a part of the summed sequence
};

/// Returns linear(input, weight, bias) with the collectives of the split. In backward of a column split, the reduction
/// of the input's gradient runs while the gradients of weight and bias are computed. Under autocast the arguments are
/// converted as for torch::linear.
///
/// \param input         [..., in], contiguous or not.
/// \param weight        This rank's part, [out, in].
/// \param bias          This rank's part, [out], or undefined. Must be undefined for the splits by row, because the sum
///                      would contain it once for each rank.
/// \param sequence_dim  From 0 to input.dim() - 2. Only used by the _sequence splits.
at::Tensor split_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, LinearSplit split,
                        int64_t sequence_dim, const comm::Group& group);

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
// Private: the arithmetic of linear_cross_entropy in chunks of rows, without autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "accelerate/nn/cross_entropy_kernel.hpp"

namespace accelerate::nn {

/// Checked inputs. N rows, C classes.
struct CrossEntropyProblem {
  at::Tensor x;              ///< [N, features]
  at::Tensor weight;         ///< [C, features]
  at::Tensor bias;           ///< [C] or undefined
  at::Tensor target;         ///< [N] int64
  at::Tensor class_weights;  ///< [C] or undefined
  int64_t ignore_index;
  double label_smoothing;
  int64_t max_bytes;
  at::ScalarType compute_dtype;  ///< of the matrix products and the logits
  at::ScalarType loss_dtype;     ///< of everything else: float32 or float64
  /// Computes the rows of logits, if the loss is float32. If null, ATen's operators do.
  const CrossEntropyKernel* kernel = nullptr;
};

/// The gradients to compute.
struct WantedGradients {
  bool x = false;
  bool weight = false;
  bool bias = false;

  [[nodiscard]] bool any() const { return x || weight || bias; }
};

/// Gradients of the sum of all losses; unwanted ones are undefined. Dtypes: the compute dtype or the loss dtype.
struct CrossEntropyGradients {
  at::Tensor x;       ///< [N, features]
  at::Tensor weight;  ///< [C, features]
  at::Tensor bias;    ///< [C]
};

struct CrossEntropyResult {
  at::Tensor losses;       ///< [N] loss dtype, 0 for ignored rows
  at::Tensor denominator;  ///< [] loss dtype, divides the sum for the mean
  CrossEntropyGradients gradients;
};

/// Computes the losses and the wanted gradients. Autograd and autocast must be off.
///
/// \param row_factors  Factor of each row's loss in the gradients, [N] loss dtype within -1 to 1, or undefined for 1.
///   The losses themselves have no factor.
/// \note fp16: the gradients of logits are stored unscaled, between -1 and 1 times the class weight, because a mean
///   over many rows would underflow. Class weights are at most 1.
CrossEntropyResult cross_entropy_in_chunks(const CrossEntropyProblem& problem, const WantedGradients& wanted,
                                           const at::Tensor& row_factors);

}  // namespace accelerate::nn

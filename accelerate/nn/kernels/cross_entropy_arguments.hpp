// SPDX-License-Identifier: Apache-2.0
// Private: arguments of the cross-entropy kernel. This file is a part of the kernel's text, so it includes nothing.
#pragma once

namespace accelerate::nn {

/// Rows of logits, one for each block of threads. Pointers are to memory of the device. A loss is
///   (log_sum - z[target]) * of_target + sum over c of (log_sum - z[c]) * class_weights[c] * of_all
/// with z = logits + bias and log_sum = log(sum(exp(z))).
struct CrossEntropyArguments {
  void* logits;                ///< first row; 16-byte loads are used between 16-byte boundaries
  long long row_stride;        ///< from one row to the next, in elements
  long long classes;           ///< elements of a row; the padding up to row_stride is neither read nor written
  const long long* target;     ///< [rows]
  long long ignore_index;      ///< rows with this target have the loss 0 and the gradient 0, and are not read
  const float* of_target;      ///< [rows]
  const float* of_all;         ///< [rows], or null without label smoothing
  const float* row_factors;    ///< [rows], factors of the gradient, or null for 1
  const float* bias;           ///< [classes], or null
  const float* class_weights;  ///< [classes], or null for 1
  const float* all_weights;    ///< [1], sum of the class weights, or null for the number of classes
  float* losses;               ///< [rows], written
  long long gradient;          ///< if not 0, the logits are replaced by the gradient of loss * row_factor
};

/// Upper limit of the threads of a block. Their number must be a power of two.
constexpr int kCrossEntropyThreads = 512;

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
// Private: the arithmetic of batch normalisation over several ranks, without communication.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace accelerate::nn {

/// Moments of this rank's part of a batch in a form for transfer: mean, sum of squared deviations from that mean,
/// values per channel.
///
/// \param input  [N, C, ...]; N may be 0.
/// \returns [2C + 1], float64 for a float64 input, otherwise float32.
at::Tensor moments_of(const at::Tensor& input);

/// Moments of the batches of all ranks.
struct BatchMoments {
  at::Tensor mean;      ///< [C]
  at::Tensor variance;  ///< [C], biased, for the normalisation
  at::Tensor unbiased;  ///< [C], for the running statistics
  at::Tensor values;    ///< 0-dim, values per channel
};

/// \param of_ranks  [P, 2C + 1], one row of moments_of per rank. Ranks without values have no effect.
/// \note Deviations are combined (Chan et al.), so a mean that is large compared to its variance loses no digits.
BatchMoments combine(const at::Tensor& of_ranks);

/// \returns (input - mean) * invstd * weight + bias per channel, [N, C, ...] with input's dtype and memory format.
at::Tensor normalised(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
                      const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);

/// This rank's part of a backward.
struct BatchGradients {
  at::Tensor deviation;  ///< (input - mean) * invstd, [N, C, ...]
  at::Tensor sums;       ///< [2, C]: sum of the gradient, sum of the gradient times deviation
};
BatchGradients gradients_of(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
                            const at::Tensor& invstd);

/// Returns the gradient of the input.
///
/// \param part   This rank's part; its deviation is overwritten.
/// \param sums   [2, C], over all ranks.
/// \param scale  [C], invstd * weight.
at::Tensor input_gradient(const BatchGradients& part, const at::Tensor& gradient, const at::Tensor& sums,
                          const at::Tensor& values, const at::Tensor& scale);

}  // namespace accelerate::nn

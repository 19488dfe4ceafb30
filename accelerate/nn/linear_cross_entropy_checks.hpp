// SPDX-License-Identifier: Apache-2.0
// Private: the refusals of linear_cross_entropy.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/nn/linear_cross_entropy.hpp"

namespace accelerate::nn {

/// The dtype to which torch::linear would convert this tensor.
at::ScalarType linear_dtype(const at::Tensor& tensor);

/// \throws Error (usage) as linear_cross_entropy describes.
void check_linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options);

}  // namespace accelerate::nn

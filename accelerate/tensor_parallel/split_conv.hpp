// SPDX-License-Identifier: Apache-2.0
// Private: a convolution with output channels split over the ranks of a group, and its all-reduce.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/options/conv.h>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// Returns conv2d(input, weight, bias). In backward, the all-reduce of the input's gradient runs while the gradients of
/// weight and bias are computed. With create_graph it runs after them, and second derivatives are supported. Under
/// autocast the arguments are converted as for torch::conv2d.
///
/// \param input    [N, C, H, W] or [C, H, W] with real numbers, equal on all ranks.
/// \param weight   This rank's part, [out, C, kH, kW].
/// \param bias     This rank's part, [out], or undefined.
/// \param options  Stride, padding and dilation of the layer. The number of groups is 1.
at::Tensor split_conv2d(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                        const torch::nn::Conv2dOptions& options, const comm::Group& group);

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/batch_moments.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace accelerate::nn {
namespace {

// Half precision has too few digits for sums.
at::ScalarType statistics_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

/// Reshapes [C] to [1, C, 1, ...], to broadcast over an input.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

}  // namespace

at::Tensor moments_of(const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const auto dtype = statistics_dtype(input);
  const at::Tensor moments = at::zeros({2 * channels + 1}, input.options().dtype(dtype));
  if (input.numel() == 0) return moments;
  const auto dims = all_but_channels(input);
  const at::Tensor mean = moments.narrow(0, 0, channels);
  mean.copy_(input.mean(dims, /*keepdim=*/false, dtype));
  at::Tensor deviation = at::sub(input, per_channel(mean, input));
  moments.narrow(0, channels, channels).copy_(deviation.square_().sum(dims));
  const int64_t values = input.numel() / channels;
  moments.narrow(0, 2 * channels, 1).fill_(static_cast<double>(values));
  return moments;
}

BatchMoments combine(const at::Tensor& of_ranks) {
  const int64_t channels = of_ranks.size(1) / 2;
  const at::Tensor means = of_ranks.narrow(1, 0, channels);
  const at::Tensor deviations = of_ranks.narrow(1, channels, channels);
  const at::Tensor values = of_ranks.narrow(1, 2 * channels, 1);
  const at::Tensor total = values.sum();
  const at::Tensor mean = (means * (values / total)).sum(0);
  const at::Tensor deviation = (deviations + (means - mean).square() * values).sum(0);
  return {mean, deviation / total, deviation / (total - 1), total};
}

at::Tensor normalised(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
                      const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  at::Tensor out = at::sub(input, per_channel(mean, input));  // in the dtype of the statistics
  out.mul_(per_channel(weight ? invstd * *weight : invstd, input));
  if (bias) out.add_(per_channel(*bias, input));
  return out.to(input.scalar_type());
}

BatchGradients gradients_of(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
                            const at::Tensor& invstd) {
  const auto dims = all_but_channels(input);
  const at::Tensor sums = at::empty({2, mean.numel()}, mean.options());
  at::Tensor deviation = at::sub(input, per_channel(mean, input)).mul_(per_channel(invstd, input));
  sums[0].copy_(gradient.sum(dims, /*keepdim=*/false, mean.scalar_type()));
  sums[1].copy_(at::mul(gradient, deviation).sum(dims));
  return {deviation, sums};
}

at::Tensor input_gradient(const BatchGradients& part, const at::Tensor& gradient, const at::Tensor& sums,
                          const at::Tensor& values, const at::Tensor& scale) {
  const at::Tensor means = sums / values;
  const at::Tensor& out = part.deviation;
  out.mul_(per_channel(-means[1], gradient)).add_(gradient).sub_(per_channel(means[0], gradient));
  out.mul_(per_channel(scale, gradient));
  return out.to(gradient.scalar_type());
}

}  // namespace accelerate::nn

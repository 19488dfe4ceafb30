// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/clip.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <cmath>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/tensor_parallel/split_record.hpp"

namespace accelerate::nn {
namespace {

struct SplitGradients {
  explicit SplitGradients(const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> split, equal;
    for (const at::Tensor& parameter : parameters) (recorded_part(parameter) ? split : equal).push_back(parameter);
    parts = gradient::dense_gradients(split);
    whole = gradient::dense_gradients(equal);
  }
  [[nodiscard]] at::Tensor norm(const comm::Group& group, double norm_type) const {
    const at::Tensor of_parts = gradient::norm_of(parts, norm_type, &group);
    const at::Tensor of_whole = gradient::norm_of(whole, norm_type).to(of_parts.options());
    return at::linalg_vector_norm(at::stack({of_parts, of_whole}), norm_type);
  }
  std::vector<at::Tensor> parts, whole;
};

}  // namespace

at::Tensor split_grad_norm(const std::vector<at::Tensor>& parameters, const comm::Group& group, double norm_type) {
  const at::NoGradGuard no_grad;
  return SplitGradients(parameters).norm(group, norm_type);
}

at::Tensor clip_split_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const comm::Group& group,
                                 double norm_type) {
  gradient::check_norm_limit(max_norm, norm_type);
  const at::NoGradGuard no_grad;
  const SplitGradients gradients(parameters);
  const at::Tensor norm = gradients.norm(group, norm_type);
  if (std::isinf(max_norm)) return norm;
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const auto* each : {&gradients.parts, &gradients.whole}) {
    for (const at::Tensor& gradient : *each) gradient.mul_(factor.to(gradient.options().dtype()));
  }
  return norm;
}

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/clip.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/tensor_parallel/split_record.hpp"

namespace accelerate::nn {

at::Tensor clip_split_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const comm::Group& group,
                                 double norm_type) {
  gradient::check_norm_limit(max_norm, norm_type);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts, whole;
  for (const at::Tensor& parameter : parameters) (recorded_part(parameter) ? parts : whole).push_back(parameter);
  const auto part_gradients = gradient::dense_gradients(parts), whole_gradients = gradient::dense_gradients(whole);
  const at::Tensor of_parts = gradient::norm_of(part_gradients, norm_type, &group);
  const at::Tensor of_whole = gradient::norm_of(whole_gradients, norm_type).to(of_parts.options());
  const at::Tensor norm = at::linalg_vector_norm(at::stack({of_parts, of_whole}), norm_type);
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const auto* gradients : {&part_gradients, &whole_gradients}) {
    for (const at::Tensor& gradient : *gradients) gradient.mul_(factor.to(gradient.options().dtype()));
  }
  return norm;
}

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/clip.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/tensor_parallel/split_record.hpp"

namespace accelerate::nn {
namespace {

SplitGradients gradients_of(const std::vector<at::Tensor>& parameters) {
  const auto [split, equal] = parts_and_others(parameters);
  return {.parts = gradient::dense_gradients(split), .whole = gradient::dense_gradients(equal)};
}

}  // namespace

at::Tensor split_grad_norm(const std::vector<at::Tensor>& parameters, const comm::Group& group, double norm_type) {
  return split_grad_norm(gradients_of(parameters), group, norm_type);
}

at::Tensor split_grad_norm(const SplitGradients& gradients, const comm::Group& group, double norm_type,
                           const comm::Group* over) {
  const at::NoGradGuard no_grad;
  // The p-norm of the ranks' p-norms is the norm of all.
  const at::Tensor of_parts =
      gradient::norm_of({gradient::norm_of(gradients.parts, norm_type, over)}, norm_type, &group);
  const at::Tensor of_whole = gradient::norm_of(gradients.whole, norm_type, over).to(of_parts.device());
  const auto dtype = c10::promoteTypes(of_parts.scalar_type(), of_whole.scalar_type());
  return at::linalg_vector_norm(at::stack({of_parts.to(dtype), of_whole.to(dtype)}), norm_type);
}

at::Tensor clip_split_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, const comm::Group& group,
                                 double norm_type) {
  return clip_split_grad_norm_(gradients_of(parameters), max_norm, group, norm_type);
}

at::Tensor clip_split_grad_norm_(const SplitGradients& gradients, double max_norm, const comm::Group& group,
                                 double norm_type, const comm::Group* over) {
  gradient::check_norm_limit(max_norm, norm_type);
  const at::NoGradGuard no_grad;
  const at::Tensor norm = split_grad_norm(gradients, group, norm_type, over);
  for (const auto* each : {&gradients.parts, &gradients.whole}) {
    gradient::scale_to_norm(gradient::by_kind(*each), norm, max_norm);
  }
  return norm;
}

}  // namespace accelerate::nn

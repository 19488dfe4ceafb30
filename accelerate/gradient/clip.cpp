// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/clip.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "accelerate/base/error.hpp"

namespace accelerate::gradient {
namespace {

at::Tensor norm_of_groups(const std::vector<std::vector<at::Tensor>>& groups, double norm_type) {
  const at::Device device = groups.front().front().device();
  // Half precision would lose digits of a large tensor's norm. All norms have one dtype, so that they can be stacked.
  const bool has_double = std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return c10::toRealValueType(group.front().scalar_type()) == at::kDouble;
  });
  const at::ScalarType dtype = has_double ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> norms;
  for (const auto& group : groups) {
    // A norm is real, but computed in the complex dtype.
    const auto computed_in = group.front().is_complex() ? c10::toComplexType(dtype) : dtype;
    for (const at::Tensor& norm : at::_foreach_norm(group, norm_type, computed_in))
      norms.push_back(norm.to(device, !device.is_cpu()));
  }
  return norms.size() == 1 ? norms.front() : at::linalg_vector_norm(at::stack(norms), norm_type);
}

// Norm over the parts of all ranks. The result has the dtype and device of this rank's part.
at::Tensor norm_over(const comm::Group& group, const at::Tensor& part, double norm_type) {
  // One dtype and device for the sum, independent of this rank's gradients.
  at::Tensor sum = part.to(group.device().value_or(at::kCPU), at::kDouble);
  if (std::isinf(norm_type)) {
    sum = sum.nan_to_num(norm_type, norm_type);  // because the maximum of a number and NaN is unspecified
    group.all_reduce(sum, comm::ReduceOp::max);
  } else {
    sum = sum.pow(norm_type);
    group.all_reduce(sum);
    sum = sum.pow(1 / norm_type);
  }
  return sum.to(part.device(), part.scalar_type());
}

at::Tensor total_norm(const std::vector<std::vector<at::Tensor>>& groups, double norm_type, const comm::Group* over) {
  // A rank without gradients must not round the norm of the other ranks.
  at::Tensor norm =
      groups.empty() ? at::zeros({}, over == nullptr ? at::kFloat : at::kDouble) : norm_of_groups(groups, norm_type);
  return over == nullptr ? norm : norm_over(*over, norm, norm_type);
}

}  // namespace

std::vector<std::vector<at::Tensor>> by_kind(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const at::Tensor& tensor : tensors) {
    auto found = groups.begin();
    while (found != groups.end() &&
           (found->front().device() != tensor.device() || found->front().scalar_type() != tensor.scalar_type())) {
      ++found;
    }
    if (found == groups.end()) found = groups.insert(found, std::vector<at::Tensor>{});
    found->push_back(tensor);
  }
  return groups;
}

std::vector<at::Tensor> dense_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      // Sums duplicate rows.
      gradient = gradient.coalesce();
      gradients.push_back(gradient._values());
    } else {
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

std::vector<at::Tensor> dense_gradients(std::span<state::ParameterShard> parameter_shards) {
  std::vector<at::Tensor> gradients;
  for (state::ParameterShard& param_shard : parameter_shards) {
    if (!param_shard.gradient.defined()) continue;
    if (!param_shard.gradient.is_sparse()) {
      gradients.push_back(param_shard.gradient);
      continue;
    }
    const bool of_parameter = param_shard.value.grad().is_same(param_shard.gradient);
    param_shard.gradient = param_shard.gradient.coalesce();
    if (of_parameter) param_shard.value.mutable_grad() = param_shard.gradient;
    gradients.push_back(param_shard.gradient._values());
  }
  return gradients;
}

void check_norm_limit(double max_norm, double norm_type) {
  if (!(max_norm >= 0)) {
    base::fail(ErrorKind::usage, {}, "clip_grad_norm_", "max_norm is {}, must be at least 0; infinity only measures",
               max_norm);
  }
  if (!(norm_type > 0)) {
    base::fail(ErrorKind::usage, {}, "clip_grad_norm_", "norm_type is {}, must be above 0 (infinity is allowed)",
               norm_type);
  }
}

void check_value_limit(double value) {
  if (!(value >= 0)) {
    base::fail(ErrorKind::usage, {}, "clip_grad_value_", "value is {}, must be at least 0", value);
  }
}

at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double norm_type, const comm::Group* over) {
  check_norm_limit(0, norm_type);
  const at::NoGradGuard no_grad;
  return total_norm(by_kind(gradients), norm_type, over);
}

at::Tensor clip_norm_of(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type,
                        const comm::Group* over) {
  check_norm_limit(max_norm, norm_type);
  const at::NoGradGuard no_grad;
  const auto groups = by_kind(gradients);
  const at::Tensor total = total_norm(groups, norm_type, over);
  scale_to_norm(groups, total, max_norm);
  return total;
}

void scale_to_norm(const std::vector<std::vector<at::Tensor>>& groups, const at::Tensor& norm, double max_norm) {
  if (groups.empty() || std::isinf(max_norm)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor factor = norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  for (const auto& group : groups) {
    const at::Device device = group.front().device();  // the host must wait for a copy to the CPU
    at::_foreach_mul_(group, factor.to(device, group.front().scalar_type(), !device.is_cpu()));
  }
}

void clip_value_of(const std::vector<at::Tensor>& gradients, double value) {
  check_value_limit(value);
  const at::NoGradGuard no_grad;
  for (const auto& group : by_kind(gradients)) {
    at::_foreach_clamp_min_(group, -value);
    at::_foreach_clamp_max_(group, value);
  }
}

void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) {
  if (factor == 1.0) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& gradient : dense_gradients(parameters)) gradient.mul_(factor);
}

}  // namespace accelerate::gradient

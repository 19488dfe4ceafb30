// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/clip.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <unordered_set>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/pipeline/tied_parameters.hpp"

namespace accelerate::pipeline {
namespace {

constexpr std::string_view kCall = "Pipeline.clip_grad_norm_";

/// A sparse gradient is coalesced in place, because its norm is that of the sums of equal indices.
at::Tensor values_of(at::Tensor& gradient) {
  if (gradient.layout() == c10::kStrided) return gradient;
  gradient = gradient.coalesce();
  return gradient._values();
}

/// Dense values of the gradients of this process, each once. A parameter may be in several layers.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters, const ClipScope& scope,
                                     bool counted_only) {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const void*> seen;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (counted_only && scope.tied != nullptr && !scope.tied->counts_here(parameter)) continue;
    gradients.push_back(values_of(parameter.mutable_grad()));
  }
  return gradients;
}

}  // namespace

at::Tensor clip_gradients(const std::vector<at::Tensor>& parameters, const ClipScope& scope, double max_norm,
                          double norm_type) {
  const RankContext place = scope.group ? scope.group->place() : RankContext();
  if (!(max_norm >= 0)) base::fail(ErrorKind::usage, place, kCall, "max_norm is {}, must be at least 0", max_norm);
  if (!(norm_type > 0)) base::fail(ErrorKind::usage, place, kCall, "norm_type is {}, must be positive", norm_type);
  const at::NoGradGuard no_grad;
  const bool is_maximum = std::isinf(norm_type);
  at::Tensor total = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(scope.device));
  for (const auto& gradient : gradients_of(parameters, scope, /*counted_only=*/true)) {
    const at::Tensor norm = at::linalg_vector_norm(gradient, norm_type).to(scope.device, at::kDouble);
    total = is_maximum ? at::maximum(total, norm) : total + norm.pow(norm_type);
  }
  if (scope.group && scope.group->size() > 1) {
    comm::with_operation_context(kCall, "the norms of the stages are not combined", place, [&] {
      scope.group->all_reduce(total, is_maximum ? comm::ReduceOp::max : comm::ReduceOp::sum);
    });
  }
  if (!is_maximum) total = total.pow(1 / norm_type);
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (const auto& gradient : gradients_of(parameters, scope, /*counted_only=*/false)) {
    gradient.mul_(factor.to(gradient.device(), gradient.scalar_type()));
  }
  return total;
}

}  // namespace accelerate::pipeline

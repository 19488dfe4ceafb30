// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/non_finite.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <cmath>

#include "accelerate/gradient/clip.hpp"

namespace accelerate::gradient {
namespace {

int64_t count_non_finite(state::ParameterShard& param_shard) {
  return dense_gradients({&param_shard, 1}).front().isfinite().logical_not().sum().item<int64_t>();
}

}  // namespace

void require_finite(const at::Tensor& norm, std::span<state::ParameterShard> parameter_shards, const RankContext& place,
                    bool is_over_ranks) {
  const auto value = norm.item<double>();
  if (std::isfinite(value)) return;
  const at::NoGradGuard no_grad;
  const state::ParameterShard* first = nullptr;
  int64_t elements = 0, count = 0, gradients = 0;
  for (state::ParameterShard& param_shard : parameter_shards) {
    if (!param_shard.gradient.defined()) continue;
    ++gradients;
    const int64_t bad = count_non_finite(param_shard);
    if (bad == 0) continue;
    if (first == nullptr) elements = bad;
    if (first == nullptr) first = &param_shard;
    ++count;
  }
  if (first == nullptr && is_over_ranks) {
    base::fail(
        ErrorKind::data, place, "clip_grad_norm_",
        "the norm of the gradients of all ranks is {}, and each of the {} here is finite; the error of another "
        "rank names the gradient; lower the learning rate, or switch error_if_nonfinite off to clip by it anyway",
        value, gradients);
  }
  if (first == nullptr) {
    base::fail(ErrorKind::data, place, "clip_grad_norm_",
               "the norm of the gradients is {}, though each of the {} is finite: it is above what {} holds; lower the "
               "learning rate or the loss, or switch error_if_nonfinite off to clip by it anyway",
               value, gradients, c10::toString(norm.scalar_type()));
  }
  base::fail(ErrorKind::data, place, "clip_grad_norm_",
             "the norm of the gradients is {}: {} of {} gradients are not finite, the first that of {} in {} of its {} "
             "elements; lower the learning rate, or switch error_if_nonfinite off to clip by it anyway",
             value, count, gradients, first->name, elements, first->gradient.numel());
}

}  // namespace accelerate::gradient

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/grad_scaler.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include "accelerate/comm/group.hpp"

namespace accelerate::precision {
namespace {

// Tensors grouped by device and dtype, for one kernel call each.
std::vector<std::vector<at::Tensor>> by_device_and_dtype(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const at::Tensor& tensor : tensors) {
    const auto same_group = [&](const auto& group) {
      return group.front().device() == tensor.device() && group.front().scalar_type() == tensor.scalar_type();
    };
    auto found = std::find_if(groups.begin(), groups.end(), same_group);
    if (found == groups.end()) found = groups.emplace(groups.end());
    found->push_back(tensor);
  }
  return groups;
}

void require(bool holds, const RankContext& place, const char* option, double value, const char* must) {
  if (!holds) base::fail(ErrorKind::usage, place, "grad_scaler", "{} is {}, must be {}", option, value, must);
}

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

}  // namespace

void check_grad_scaler_options(const GradScalerOptions& options, const RankContext& place) {
  require(is_positive(options.init_scale), place, "init_scale", options.init_scale, "a finite number above 0");
  require(std::isfinite(options.growth_factor) && options.growth_factor > 1, place, "growth_factor",
          options.growth_factor, "a finite number above 1");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, place, "backoff_factor", options.backoff_factor,
          "between 0 and 1, both excluded");
  require(options.growth_interval >= 1, place, "growth_interval", static_cast<double>(options.growth_interval),
          "at least 1");
  if (!(options.min_scale >= 0) || options.min_scale > options.init_scale) {
    base::fail(ErrorKind::usage, place, "grad_scaler",
               "min_scale is {}, must be at least 0 and at most init_scale ({})", options.min_scale,
               options.init_scale);
  }
}

at::Tensor summed_over(const comm::Group& group, const at::Tensor& flags) {
  const at::Device carried = group.device().value_or(at::kCPU);
  const at::Tensor sum = flags.to(carried, /*non_blocking=*/false, /*copy=*/true);
  group.all_reduce(sum);
  return sum.to(flags.device());
}

GradScaler::GradScaler(const GradScalerOptions& options, at::Device device, const RankContext& place)
    : options_(options), place_(place) {
  check_grad_scaler_options(options, place);
  scale_ = at::full({}, options.init_scale, at::TensorOptions(device).dtype(at::kFloat));
  growth_tracker_ = at::zeros({}, at::TensorOptions(device).dtype(at::kInt));
}

at::Tensor GradScaler::unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& scale,
                               const comm::Group* over) const {
  const at::NoGradGuard no_grad;
  at::Tensor found_inf = at::zeros({}, scale_.options());
  // Uses double, as PyTorch does: a division in float32 may be imprecise under some compile options.
  const at::Tensor inverse = scale.to(at::kDouble).reciprocal().to(at::kFloat);
  for (const auto& group : by_device_and_dtype(gradients)) {
    const at::Tensor& first = group.front();
    if (first.scalar_type() == at::kHalf) {
      base::fail(
          ErrorKind::usage, place_, "unscale",
          "a gradient of shape [{}] is float16, must be float32; fp16 computes in float16 automatically: keep the "
          "model's parameters in float32 (model->to(torch::kFloat))",
          c10::Join(", ", first.sizes()));
    }
    const bool here = first.device() == found_inf.device();
    at::Tensor found = here ? found_inf : at::zeros({}, first.options().dtype(at::kFloat));
    at::_amp_foreach_non_finite_check_and_unscale_(group, found, inverse.to(first.device(), !first.is_cpu()));
    if (!here) found_inf.add_(found.to(found_inf.device(), !found_inf.is_cpu()));
  }
  return over == nullptr ? found_inf : summed_over(*over, found_inf);
}

void GradScaler::update(const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
}

ScalerState GradScaler::state() const {
  return {.scale = scale_.item<double>(),
          .growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .growth_tracker = growth_tracker_.item<int64_t>()};
}

GradScalerOptions GradScaler::loadable(const ScalerState& state) const {
  GradScalerOptions loaded = options_;
  loaded.growth_factor = state.growth_factor;
  loaded.backoff_factor = state.backoff_factor;
  loaded.growth_interval = state.growth_interval;
  if (!is_positive(state.scale) || state.growth_tracker < 0) {
    base::fail(ErrorKind::data, place_, "load_state",
               "the saved loss scale is {} with growth tracker {}, must be a finite number above 0 with at least 0",
               state.scale, state.growth_tracker);
  }
  check_grad_scaler_options(loaded, place_);
  return loaded;
}

void GradScaler::load_state(const ScalerState& state) {
  options_ = loadable(state);
  scale_.fill_(state.scale);
  growth_tracker_.fill_(state.growth_tracker);
}

}  // namespace accelerate::precision

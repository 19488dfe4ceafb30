// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/scaled_gradients.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

namespace accelerate::prepared {
namespace {

// The host waits if more flags are pending, so that errors are not reported long after the step.
constexpr size_t kMaxFlags = 64;

}  // namespace

void ScaledGradients::mark_scaled(const at::Tensor& scale) {
  if (!scale_.defined()) {
    scale_ = scale;
  } else if (!scale_.is_same(scale)) {
    const at::Tensor differs = scale_.ne(scale).to(at::kFloat);
    mixed_ = mixed_.defined() ? mixed_ + differs : differs;
  }
}

// The scale is a power of two unless the factors were changed, so scaling again restores the gradients up to rounding.
void ScaledGradients::rescale(const at::Tensor& scale, const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  at::Tensor here = scale;
  for (const at::Tensor& gradient : gradients) {
    const at::Device device = gradient.device();
    if (here.device() != device) here = scale.to(device, !device.is_cpu());
    gradient.mul_(here);
  }
  scale_ = scale;
  found_before_ = std::exchange(found_inf_, at::Tensor());
}

void ScaledGradients::reset_scale() {
  scale_.reset();
  found_inf_.reset();
  found_before_.reset();
  mixed_.reset();
}

void ScaledGradients::freeze_scale() {
  if (scale_.defined()) scale_ = scale_.clone();
}

void ScaledGradients::unscale(const precision::GradScaler& scaler, const std::vector<at::Tensor>& gradients) {
  if (unscaled()) return;
  found_inf_ = scaler.unscale(gradients, scale_);
  if (was_unscaled_before_rescale()) found_inf_.add_(std::exchange(found_before_, at::Tensor())).clamp_max_(1.0);
}

void ScaledGradients::agree(const comm::Group& group) {
  const at::Tensor mixed = mixed_.defined() ? mixed_ : at::zeros_like(found_inf_);
  const at::Tensor anywhere = precision::summed_over(group, at::stack({found_inf_, mixed}));
  found_inf_ = anywhere.select(0, 0);
  mixed_ = anywhere.select(0, 1);
}

at::Tensor ScaledGradients::skip() const {
  return (mixed_.defined() ? found_inf_ + mixed_ : found_inf_).clamp_max(1.0);
}

void ScaledGradients::record_step(const at::Tensor& skip) {
  stepped_ = true;
  const at::Tensor flag = at::stack({skip, scale_.to(skip.device(), true)});
  last_flag_ = flag;
  capture_ ? recorded_.push_back(flag) : replayed({flag});
}

void ScaledGradients::forget_steps() {
  flags_.clear();
  last_flag_.reset();
  in_a_row_ = skipped_ = 0;
  iteration_ended();
}

// Returns a copy, because the next replay overwrites the flag.
at::Tensor ScaledGradients::last_flag() const {
  return last_flag_.defined() ? last_flag_.select(0, 0).clone() : at::Tensor();
}

std::vector<at::Tensor> ScaledGradients::end_capture() {
  capture_ = false;
  return std::exchange(recorded_, {});
}

void ScaledGradients::replayed(const std::vector<at::Tensor>& flags) {
  for (const at::Tensor& flag : flags) flags_.emplace_back(flag);
  if (!flags.empty()) last_flag_ = flags.back();
}

void ScaledGradients::read_flags(bool wait, const precision::GradScalerOptions& options, const RankContext& place) {
  while (!flags_.empty()) {
    if (wait || flags_.size() > kMaxFlags) flags_.front().wait();
    if (!flags_.front().arrived()) return;
    const precision::AsyncScalarRead flag = std::move(flags_.front());
    flags_.pop_front();
    read(flag, options, place);
  }
}

void ScaledGradients::read(const precision::AsyncScalarRead& flag, const precision::GradScalerOptions& options,
                           const RankContext& place) {
  if (flag[0] == 0) {
    in_a_row_ = 0;
    return;
  }
  ++in_a_row_;
  ++skipped_;
  const double scale = flag[1];
  const double lower = scale * options.backoff_factor;
  if (lower >= options.min_scale) return;
  base::fail(ErrorKind::data, place, "optimizer.step",
             "the loss scale is {}, inf or NaN in the gradients would bring it to {}, below its floor min_scale ({}), "
             "after {} skipped steps in a row: smaller scales do not help; look for NaN in loss, data and parameters "
             "(stop_at_nan_loss), lower the learning rate, or use bf16",
             scale, lower, options.min_scale, in_a_row_);
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/tensors/convert.hpp"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

namespace accelerate::tracking {
namespace {

void check_images(const at::Tensor& images, const RankContext& place) {
  const auto refuse = [&](const char* reason) {
    base::fail(ErrorKind::usage, place, "log_images", "the tensor is {} {}, {}", c10::str(images.sizes()),
               c10::toString(images.scalar_type()), reason);
  };
  const int64_t dimensions = images.dim();
  if (dimensions < 2 || dimensions > 4) refuse("must be [N, C, H, W], [C, H, W] or [H, W]");
  if (dimensions > 2 && (images.size(-3) < 1 || images.size(-3) > 4))
    refuse("must have 1 to 4 channels before H and W");
  if (!images.is_floating_point() && images.scalar_type() != at::kByte) refuse("must be of bytes or floating point");
}

/// Converts [C, H, W] to row-major bytes.
Image image_of(const at::Tensor& image) {
  at::Tensor bytes = image;
  if (image.is_floating_point()) {
    bytes = image.to(at::kFloat).mul(255).nan_to_num(0.0, 255.0, 0.0).clamp(0, 255).round().to(at::kByte);
  }
  const at::Tensor rows = bytes.permute({1, 2, 0}).contiguous().cpu();
  const auto* first = rows.const_data_ptr<uint8_t>();
  return {
      .height = rows.size(0), .width = rows.size(1), .channels = rows.size(2), .pixels = {first, first + rows.numel()}};
}

}  // namespace

void log_images(Trackers& trackers, const std::string& name, const at::Tensor& images, Step step,
                const RankContext& place) {
  check_images(images, place);
  if (!trackers.in_run()) return;
  at::Tensor all = images.detach();
  if (all.dim() == 2) all = all.unsqueeze(0);
  if (all.dim() == 3) all = all.unsqueeze(0);
  std::vector<Image> made;
  for (int64_t i = 0; i < all.size(0); ++i) made.push_back(image_of(all[i]));
  trackers.log_images(name, made, step);
}

void log_histogram(Trackers& trackers, const std::string& name, const at::Tensor& values, Step step) {
  if (!trackers.in_run()) return;
  // A copy, because operators wait for parameters that are on their way after a step, and a read of memory does not.
  const at::Tensor numbers =
      values.detach().to(at::kCPU).to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  const auto* first = numbers.const_data_ptr<double>();
  trackers.log_histogram(name, histogram_of({first, static_cast<size_t>(numbers.numel())}), step);
}

}  // namespace accelerate::tracking

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/transforms/normalize.hpp"

#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

Normalize::Normalize(const std::vector<double>& mean, const std::vector<double>& std) {
  if (mean.empty() || mean.size() != std.size())
    base::fail(ErrorKind::usage, {}, "normalize", "mean has {} values, std {}; both must have one for each channel",
               mean.size(), std.size());
  for (size_t i = 0; i < std.size(); ++i) {
    if (static_cast<float>(std[i]) == 0.0F || !std::isfinite(std[i]) || !std::isfinite(mean[i]))
      base::fail(ErrorKind::usage, {}, "normalize",
                 "channel {} has mean {} and std {}; both must be finite, and std must not be 0", i, mean[i], std[i]);
  }
  mean_ = at::tensor(mean, at::kDouble).view({-1, 1, 1});
  std_ = at::tensor(std, at::kDouble).view({-1, 1, 1});
}

at::Tensor Normalize::operator()(const at::Tensor& images) const {
  if (!images.is_floating_point())
    base::fail(ErrorKind::data, {}, "normalize", "the images are {}, must be of floating point; ToFloat converts them",
               c10::toString(images.scalar_type()));
  const int64_t channels = images.dim() < 3 ? -1 : images.size(-3);
  if (channels < 0 || (mean_.size(0) != 1 && channels != mean_.size(0)))
    base::fail(ErrorKind::data, {}, "normalize", "the images are [{}], must be [..., {}, H, W] for {} values of mean",
               c10::Join(", ", images.sizes()), mean_.size(0) == 1 ? "C" : std::to_string(mean_.size(0)),
               mean_.size(0));
  // Uses torchvision's operations in torchvision's order, in the dtype of the images.
  const auto like_images = [&](const at::Tensor& values) { return values.to(images.device(), images.scalar_type()); };
  return images.sub(like_images(mean_)).div_(like_images(std_));
}

}  // namespace accelerate::data

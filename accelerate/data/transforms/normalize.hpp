// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace accelerate::data {

/// torchvision.transforms.Normalize, bit-equal: (image - mean) / std for every channel.
class Normalize {
 public:
  /// mean, std   one value for each channel, or one for all
  /// Throws Error (usage) where they are not as many, and for a std that is 0 or not finite.
  Normalize(const std::vector<double>& mean, const std::vector<double>& std);

  /// images   [..., C, H, W] of floating point
  /// Throws Error (data) for another dtype, and another number of channels.
  at::Tensor operator()(const at::Tensor& images) const;

 private:
  at::Tensor mean_;  // [C, 1, 1] float64
  at::Tensor std_;
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace accelerate::data {

/// torchvision.transforms.Normalize, bit-equal: (image - mean) / std for every channel. Thread-safe.
class Normalize {
 public:
  /// \param mean  One value per channel, or one for all; like std.
  /// \throws Error (usage) for different numbers of values, and for a std that is 0 or not finite.
  Normalize(const std::vector<double>& mean, const std::vector<double>& std);

  /// \param images  [..., C, H, W], floating point.
  /// \throws Error (data) for another dtype, and another number of channels.
  at::Tensor operator()(const at::Tensor& images) const;

 private:
  at::Tensor mean_;  // [C, 1, 1] float64
  at::Tensor std_;
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/data/transforms/sample_random.hpp"

namespace accelerate::data {

/// torchvision.transforms.RandomHorizontalFlip: each image is mirrored with probability p, drawn for each sample.
class RandomHorizontalFlip {
 public:
  /// \throws Error (usage) for p outside 0 to 1.
  explicit RandomHorizontalFlip(double p = 0.5);

  /// images   [B, ..., W]
  at::Tensor operator()(const at::Tensor& images, const TransformContext& context) const;

 private:
  double p_;
};

}  // namespace accelerate::data

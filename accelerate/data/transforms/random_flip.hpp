// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/data/transforms/sample_random.hpp"

namespace accelerate::data {

/// torchvision.transforms.RandomHorizontalFlip: mirrors each image with probability p, drawn per sample. Thread-safe.
class RandomHorizontalFlip {
 public:
  /// \throws Error (usage) for p outside 0 to 1.
  explicit RandomHorizontalFlip(double p = 0.5);

  /// \param images  [B, ..., W].
  at::Tensor operator()(const at::Tensor& images, const TransformContext& context) const;

 private:
  double p_;
};

}  // namespace accelerate::data

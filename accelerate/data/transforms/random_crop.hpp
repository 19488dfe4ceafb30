// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "accelerate/data/transforms/sample_random.hpp"

namespace accelerate::data {

struct RandomCropOptions {
  /// Height and width of the crop.
  std::array<int64_t, 2> size{};
  /// Pixels of padding that are first added on each side.
  int64_t padding = 0;
  /// Value of the padding.
  at::Scalar fill = 0;
};

/// torchvision.transforms.RandomCrop: a random window of each image, drawn per sample. Thread-safe.
class RandomCrop {
 public:
  /// \throws Error (usage) for a size below 1 and a negative padding.
  explicit RandomCrop(const RandomCropOptions& options);

  /// \param images  [B, ..., H, W] on the CPU, any dtype.
  /// \returns [B, ..., size], without gradient history.
  /// \throws Error (data) for images that are smaller than the crop.
  at::Tensor operator()(const at::Tensor& images, const TransformContext& context) const;

 private:
  RandomCropOptions options_;
};

}  // namespace accelerate::data

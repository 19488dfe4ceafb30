// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::data {

/// Bytes as float32 in [0, 1], bit-equal to torchvision.transforms.ToTensor: byte / 255. What is of floating point
/// stays.
struct ToFloat {
  /// images   of any shape
  /// Throws Error (data) for another dtype.
  at::Tensor operator()(const at::Tensor& images) const;
};

}  // namespace accelerate::data

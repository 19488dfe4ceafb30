// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "accelerate/data/batch_memory.hpp"
#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Bytes as float32 in [0, 1], bit-equal to torchvision.transforms.ToTensor: byte / 255. What is of floating point
/// stays.
class ToFloat {
 public:
  /// \param images  Of any shape.
  /// \returns a tensor on the CPU in reused memory, pinned if the pass requests it.
  /// \throws Error (data) for another dtype.
  at::Tensor operator()(const at::Tensor& images, const ReadContext& pass = {}) const;

 private:
  std::shared_ptr<BatchMemory> memory_ = std::make_shared<BatchMemory>();  // copies share it
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "accelerate/data/batch_buffer_pool.hpp"
#include "accelerate/data/source.hpp"

namespace accelerate::data {

/// Converts bytes to float32 in [0, 1], bit-equal to torchvision.transforms.ToTensor: byte / 255. Floating-point
/// tensors are unchanged. Thread-safe.
class ToFloat {
 public:
  /// \param images  Any shape.
  /// \returns a tensor on the CPU in reused memory, pinned if the pass requests it.
  /// \throws Error (data) for another dtype.
  at::Tensor operator()(const at::Tensor& images, const ReadContext& pass = {}) const;

 private:
  std::shared_ptr<BatchBufferPool> memory_ = std::make_shared<BatchBufferPool>();  // shared by copies
};

}  // namespace accelerate::data

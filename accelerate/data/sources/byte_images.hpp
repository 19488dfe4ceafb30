// SPDX-License-Identifier: Apache-2.0
// Images stored as bytes: a quarter of the memory of floats, and faster to gather (README).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "accelerate/data/batch_buffer_pool.hpp"
#include "accelerate/data/source.hpp"

namespace accelerate::data {

class ByteImages final : public Source {
 public:
  /// \param images     [N, C, H, W] uint8.
  /// \param labels     [N] int64.
  /// \param mean       One value per channel: batches are (pixel / 255 - mean) / deviation, bit-equal to torchvision's
  ///                   ToTensor and Normalize.
  /// \param deviation  One value per channel.
  ByteImages(at::Tensor images, at::Tensor labels, std::span<const float> mean, std::span<const float> deviation);

  [[nodiscard]] int64_t size() const override { return labels_.size(0); }
  /// Uses reused memory, and several threads for a large batch.
  [[nodiscard]] Batch read(const at::Tensor& indices) const override { return read_in_pass(indices, {}); }
  [[nodiscard]] Batch read_in_pass(const at::Tensor& indices, const ReadContext& context) const override;

 private:
  /// Writes the images number[0] to number[count-1] to `to`.
  void look_up_images(const int64_t* number, int64_t count, float* to) const;

  using Values = std::array<float, 256>;

  at::Tensor images_;
  at::Tensor labels_;
  int64_t plane_;               // H * W
  std::vector<Values> values_;  // table of all byte values, per channel
  mutable BatchBufferPool memory_;
};

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/byte_images.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace accelerate::data {
namespace {

// A shuffled image is a cache miss for the hardware: half of the time without this.
void prefetch(const uint8_t* image, int64_t bytes) {
  for (int64_t p = 0; p < bytes; p += 64) __builtin_prefetch(image + p);
}

// Eight bytes by one load: 38 us per 64 images of MNIST instead of 49, 14 us with the prefetch.
void look_up(const uint8_t* from, int64_t count, const std::array<float, 256>& value, float* to) {
  int64_t p = 0;
  for (; p + 8 <= count; p += 8, to += 8) {
    uint64_t word = 0;
    std::memcpy(&word, from + p, 8);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    const std::array<float, 8> eight{value[word & 255U],       value[word >> 8 & 255U],  value[word >> 16 & 255U],
                                     value[word >> 24 & 255U], value[word >> 32 & 255U], value[word >> 40 & 255U],
                                     value[word >> 48 & 255U], value[word >> 56]};
    std::copy(eight.begin(), eight.end(), to);
  }
  for (; p < count; ++p) *to++ = value[from[p]];
}

}  // namespace

ByteImages::ByteImages(at::Tensor images, at::Tensor labels, std::span<const float> mean,
                       std::span<const float> deviation)
    : images_(images.contiguous()),
      labels_(std::move(labels)),
      plane_(images_.size(2) * images_.size(3)),
      values_(mean.size()) {
  // The operations and their order are torchvision's, so every one of the 256 values is bit-equal to its.
  for (size_t c = 0; c < values_.size(); ++c)
    for (size_t i = 0; i < 256; ++i) values_[c][i] = (static_cast<float>(i) / 255.0F - mean[c]) / deviation[c];
}

Batch ByteImages::read(const at::Tensor& indices) const {
  const int64_t count = indices.size(0);
  auto data =
      at::empty({count, images_.size(1), images_.size(2), images_.size(3)}, at::TensorOptions().dtype(at::kFloat));
  float* to = data.data_ptr<float>();
  const int64_t* index = indices.const_data_ptr<int64_t>();
  const uint8_t* const images = images_.const_data_ptr<uint8_t>();
  const int64_t bytes = images_.stride(0);
  for (int64_t i = 0; i < count; ++i) {
    if (i + 1 < count) prefetch(images + index[i + 1] * bytes, bytes);
    const uint8_t* from = images + index[i] * bytes;
    for (const Values& value : values_) {
      look_up(from, plane_, value, to);
      from += plane_;
      to += plane_;
    }
  }
  return {.data = std::move(data), .target = labels_.index_select(0, indices)};
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/byte_images.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/parallel_for_samples.hpp"
#include "accelerate/data/rows.hpp"

namespace accelerate::data {
namespace {

// In shuffled order the CPU does not predict the next image: the cache misses take half of the time without
// prefetching.
void prefetch(const uint8_t* image, int64_t bytes) {
  for (int64_t p = 0; p < bytes; p += 64) __builtin_prefetch(image + p);
}

// Loads eight bytes at once: 38 us instead of 49 us per 64 MNIST images, and 14 us with prefetching.
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
  // Uses torchvision's operations in torchvision's order, so that all 256 values are bit-equal.
  for (size_t c = 0; c < values_.size(); ++c)
    for (size_t i = 0; i < 256; ++i) values_[c][i] = (static_cast<float>(i) / 255.0F - mean[c]) / deviation[c];
}

void ByteImages::look_up_images(const int64_t* number, int64_t count, float* to) const {
  const uint8_t* const images = images_.const_data_ptr<uint8_t>();
  const int64_t bytes = images_.stride(0);
  for (int64_t i = 0; i < count; ++i) {
    if (i + 1 < count) prefetch(images + number[i + 1] * bytes, bytes);
    const uint8_t* from = images + number[i] * bytes;
    for (const Values& value : values_) {
      look_up(from, plane_, value, to);
      from += plane_;
      to += plane_;
    }
  }
}

Batch ByteImages::read_in_pass(const at::Tensor& requested, const ReadContext& context) const {
  const at::Tensor indices = checked_indices("loader", requested, size());
  const int64_t floats = images_.stride(0);  // per image
  auto data =
      memory_.take({indices.size(0), images_.size(1), images_.size(2), images_.size(3)}, at::kFloat, context.pinned);
  auto* const to = data.data_ptr<float>();
  const auto* const number = indices.const_data_ptr<int64_t>();
  parallel_for_samples(indices, kBytesOfPart / (4 * floats), [&](int64_t first, int64_t count) {
    look_up_images(number + first, count, to + first * floats);
  });
  return {.data = std::move(data), .target = detail::select(labels_, {indices, memory_, context.pinned})};
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/image.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

namespace accelerate::data {
namespace {

constexpr std::array<uint8_t, 3> kJpegMagic{0xff, 0xd8, 0xff};
constexpr std::array<uint8_t, 4> kPngMagic{0x89, 0x50, 0x4e, 0x47};

template <size_t length>
bool begins_with(std::span<const uint8_t> file, const std::array<uint8_t, length>& magic) {
  return file.size() >= length && std::equal(magic.begin(), magic.end(), file.begin());
}

}  // namespace

at::Tensor decode_image(std::span<const uint8_t> file) {
  if (begins_with(file, kJpegMagic)) return decode_jpeg(file);
  if (begins_with(file, kPngMagic)) return decode_png(file);
  std::string found;
  for (const uint8_t byte : file.first(std::min<size_t>(file.size(), 4))) found += fmt::format(" {:02x}", byte);
  throw BrokenImage(fmt::format("expected ff d8 ff (JPEG) or 89 50 4e 47 (PNG) at its start, found{}",
                                found.empty() ? " no byte" : found));
}

void check_pixels(int64_t height, int64_t width, size_t file_bytes, uint64_t least_bytes) {
  constexpr uint64_t most = 178'956'970;
  if (least_bytes > file_bytes)
    throw BrokenImage(
        fmt::format("its header has {}x{} pixels, more than a file of {} bytes holds", height, width, file_bytes));
  if (static_cast<uint64_t>(height) * static_cast<uint64_t>(width) > most)
    throw BrokenImage(fmt::format("its header has {}x{} pixels, must be at most {} in all", height, width, most));
}

at::Tensor planes_of(const uint8_t* rgb, int64_t height, int64_t width) {
  const at::Tensor image = at::empty({3, height, width}, at::TensorOptions().dtype(at::kByte));
  const int64_t plane = height * width;
  auto* const to = image.data_ptr<uint8_t>();
  for (int64_t i = 0; i < plane; ++i, rgb += 3) {
    to[i] = rgb[0];
    to[plane + i] = rgb[1];
    to[2 * plane + i] = rgb[2];
  }
  return image;
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/png.hpp"

#include <zlib.h>

#include <string_view>

#include "accelerate/base/error.hpp"

namespace accelerate::tracking {
namespace {

std::string big_endian(uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  return bytes;
}

const Bytef* zlib_bytes(std::string_view text) { return reinterpret_cast<const Bytef*>(text.data()); }

std::string png_chunk(std::string_view type, std::string_view data) {
  const std::string body = std::string(type) + std::string(data);
  const auto crc = ::crc32(0, zlib_bytes(body), static_cast<uInt>(body.size()));
  return big_endian(static_cast<uint32_t>(data.size())) + body + big_endian(static_cast<uint32_t>(crc));
}

std::string deflated(std::string_view bytes) {
  uLongf size = ::compressBound(bytes.size());
  std::string packed(size, '\0');
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &size, zlib_bytes(bytes), bytes.size());
  packed.resize(size);
  return packed;
}

void check_image(const Image& image) {
  // PNG's own limit is 2^31 - 1; this one keeps products within 64 bits.
  constexpr int64_t longest = 1 << 20;
  if (image.channels < 1 || image.channels > 4) {
    base::fail(ErrorKind::usage, {}, "log_images", "an image has {} channels, must have 1 to 4", image.channels);
  }
  if (image.height < 1 || image.width < 1 || image.height > longest || image.width > longest) {
    base::fail(ErrorKind::usage, {}, "log_images", "an image is {} x {}, sides must be 1 to {}", image.height,
               image.width, longest);
  }
  const auto needed = static_cast<size_t>(image.height * image.width * image.channels);
  if (image.pixels.size() != needed) {
    base::fail(ErrorKind::usage, {}, "log_images", "an image of {} x {} x {} has {} bytes, must have {}", image.height,
               image.width, image.channels, image.pixels.size(), needed);
  }
}

}  // namespace

std::string png_of(const Image& image) {
  check_image(image);
  constexpr char color_types[] = {0, 4, 2, 6};  // grey, grey and alpha, RGB, RGBA
  const auto row_bytes = static_cast<size_t>(image.width * image.channels);
  std::string rows;
  for (size_t at = 0; at < image.pixels.size(); at += row_bytes) {
    rows += '\0';  // no filter
    rows.append(reinterpret_cast<const char*>(image.pixels.data()) + at, row_bytes);
  }
  std::string header = big_endian(static_cast<uint32_t>(image.width)) + big_endian(static_cast<uint32_t>(image.height));
  header += {8, color_types[image.channels - 1], 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", deflated(rows)) + png_chunk("IEND", "");
}

}  // namespace accelerate::tracking

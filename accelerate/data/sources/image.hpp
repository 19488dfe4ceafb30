// SPDX-License-Identifier: Apache-2.0
// Image files as pixels. JPEG and PNG are a file each, with a stub beside it that takes its place where the library is
// missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <stdexcept>

namespace accelerate::data {

/// What is wrong with one image. Its reader knows the path and adds it.
class BrokenImage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A JPEG or PNG file, whatever its name; the pixels are those of Pillow's convert("RGB"): grey is expanded, an alpha
/// channel dropped, of 16 bits the upper 8 are kept. CMYK and YCCK are converted without a colour profile.
///
/// returns   [3, H, W] uint8
/// Throws BrokenImage, Error (environment) in a build without the library. Allocates no more than a file of this length
/// can fill, and at most 179 million pixels.
at::Tensor decode_image(std::span<const uint8_t> file);

at::Tensor decode_jpeg(std::span<const uint8_t> file);
at::Tensor decode_png(std::span<const uint8_t> file);

/// Throws BrokenImage for what a file of so many bytes does not hold, and for more pixels than Pillow decodes.
///
/// least_bytes   of a file with such an image, packed as tightly as its format allows
void check_pixels(int64_t height, int64_t width, size_t file_bytes, uint64_t least_bytes);

/// Pixels side by side as planes. rgb   [H, W, 3]
at::Tensor planes_of(const uint8_t* rgb, int64_t height, int64_t width);

}  // namespace accelerate::data

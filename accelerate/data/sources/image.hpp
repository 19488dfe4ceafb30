// SPDX-License-Identifier: Apache-2.0
// Decodes image files. JPEG and PNG have one source file each, and a stub that replaces it if the library is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <stdexcept>

namespace accelerate::data {

/// Defect of one image. The caller adds the path.
class BrokenImage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Decodes a JPEG or PNG file, independent of its name, to the pixels of Pillow's convert("RGB"): grey is expanded, an
/// alpha channel dropped, 16-bit values keep their upper 8 bits. CMYK and YCCK are converted without a colour profile.
/// Allocates no more than a file of this length can fill, and at most 179 million pixels.
///
/// \returns [3, H, W] uint8
/// \throws BrokenImage; Error (environment) in a build without the library.
at::Tensor decode_image(std::span<const uint8_t> file);

at::Tensor decode_jpeg(std::span<const uint8_t> file);
at::Tensor decode_png(std::span<const uint8_t> file);

/// \param least_bytes  Minimum size of a file with such an image in its format.
/// \throws BrokenImage if a file of this size cannot contain the pixels, and for more pixels than Pillow decodes.
void check_pixels(int64_t height, int64_t width, size_t file_bytes, uint64_t least_bytes);

/// Converts interleaved pixels [H, W, 3] to planes [3, H, W].
at::Tensor planes_of(const uint8_t* rgb, int64_t height, int64_t width);

}  // namespace accelerate::data

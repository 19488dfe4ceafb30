// SPDX-License-Identifier: Apache-2.0
// Replaces jpeg.cpp in a build without libjpeg.
#include "accelerate/base/error.hpp"
#include "accelerate/data/sources/image.hpp"

namespace accelerate::data {

at::Tensor decode_jpeg(std::span<const uint8_t>) {
  base::fail(ErrorKind::environment, {}, "decode_jpeg",
             "this build reads no JPEG; install libjpeg-dev and build again (ACCELERATE_WITH_JPEG=ON)");
}

}  // namespace accelerate::data

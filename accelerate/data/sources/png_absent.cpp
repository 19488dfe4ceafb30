// SPDX-License-Identifier: Apache-2.0
// Replaces png.cpp in a build without libpng.
#include "accelerate/base/error.hpp"
#include "accelerate/data/sources/image.hpp"

namespace accelerate::data {

at::Tensor decode_png(std::span<const uint8_t>) {
  base::fail(ErrorKind::environment, {}, "decode_png",
             "this build reads no PNG; install libpng-dev and build again (ACCELERATE_WITH_PNG=ON)");
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "accelerate/tracking/values.hpp"

namespace accelerate::tracking {

/// Encodes the image as a PNG file (w3.org/TR/png).
/// \throws Error (usage) if channels is not 1 to 4 or the number of pixels is not height * width * channels.
[[nodiscard]] std::string png_of(const Image& image);

}  // namespace accelerate::tracking

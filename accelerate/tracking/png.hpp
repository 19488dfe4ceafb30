// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "accelerate/tracking/values.hpp"

namespace accelerate::tracking {

/// The picture as a PNG file (w3.org/TR/png).
/// Throws Error (usage) where channels are not 1 to 4 or the pixels are not height * width * channels.
[[nodiscard]] std::string png_of(const Image& image);

}  // namespace accelerate::tracking

// SPDX-License-Identifier: Apache-2.0
// Compares the bytes of two tensors element by element.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

struct ElementDifference {
  uint64_t elements = 0;                 ///< number of elements with different bytes
  std::optional<long double> largest{};  ///< maximum |a - b|; NaN if an element is NaN; unset for a non-numeric dtype
  long double left = 0, right = 0;       ///< the two elements with the largest difference
  uint64_t index = 0;                    ///< their row-major index
};

/// `left` and `right` must have the same dtype and the same number of bytes.
/// \param dtype  Name of the dtype in safetensors.
/// \param bits   Bits per element, a multiple of 8.
ElementDifference compare_elements(const std::string& dtype, uint64_t bits, std::string_view left,
                                   std::string_view right);

}  // namespace accelerate::launch

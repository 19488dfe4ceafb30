// SPDX-License-Identifier: Apache-2.0
// Two tensors' bytes, element by element.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

struct ElementDifference {
  uint64_t elements = 0;                 ///< number of elements with different bytes
  std::optional<long double> largest{};  ///< maximum |a - b|; NaN if an element is NaN; unset for a non-numeric dtype
  long double left = 0, right = 0;       ///< the two that are that far apart
  uint64_t index = 0;                    ///< and where, row-major
};

/// `left` and `right` must have the same dtype and the same number of bytes.
/// \param dtype  Name of the dtype in safetensors.
/// \param bits   Bits per element, a multiple of 8.
ElementDifference compare_elements(const std::string& dtype, uint64_t bits, std::string_view left,
                                   std::string_view right);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Two tensors' bytes, element by element.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

struct ElementDifference {
  uint64_t elements = 0;                 ///< whose bytes differ
  std::optional<long double> largest{};  ///< |a - b|; NaN where one of them is; none: the dtype is not one of numbers
  long double left = 0, right = 0;       ///< the two that are that far apart
  uint64_t index = 0;                    ///< and where, row-major
};

/// left and right have the same dtype and as many bytes.
/// dtype   as safetensors calls it
/// bits    of an element, a multiple of 8
ElementDifference compare_elements(const std::string& dtype, uint64_t bits, std::string_view left,
                                   std::string_view right);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Private: divides a list of tensors for collectives over flat memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace accelerate::gradient {

/// Divides the list, in its order, into pieces of at most cap_bytes. A larger tensor is a piece of its own.
inline std::vector<std::vector<at::Tensor>> pieces_of(const std::vector<at::Tensor>& tensors, int64_t cap_bytes) {
  std::vector<std::vector<at::Tensor>> pieces;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto more = static_cast<int64_t>(tensor.nbytes());
    if (pieces.empty() || bytes + more > cap_bytes) {
      pieces.emplace_back();
      bytes = 0;
    }
    pieces.back().push_back(tensor);
    bytes += more;
  }
  return pieces;
}

}  // namespace accelerate::gradient

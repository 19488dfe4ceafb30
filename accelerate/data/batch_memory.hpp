// SPDX-License-Identifier: Apache-2.0
// Memory of batches that is used again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace accelerate::data {

/// Gives memory that nobody holds any more to the next batch: as long as a tensor, or a view of it, lives that it was
/// given to, its values stay. For several threads.
class BatchMemory {
 public:
  BatchMemory() = default;
  BatchMemory(const BatchMemory&) = delete;
  BatchMemory& operator=(const BatchMemory&) = delete;

  /// returns   on the CPU, not initialised; pinned: for an accelerator's copies
  [[nodiscard]] at::Tensor take(at::IntArrayRef sizes, at::ScalarType dtype, bool pinned = false);

 private:
  struct Piece {
    c10::Storage storage;
    bool pinned;
    int64_t idle = 0;  // how often it was free and not taken
  };
  /// One of that size that nobody holds; none: null storage. Lets go of what was idle for long.
  c10::Storage find(size_t bytes, bool pinned);

  std::mutex mutex_;
  std::vector<Piece> pieces_;
};

}  // namespace accelerate::data

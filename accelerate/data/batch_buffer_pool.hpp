// SPDX-License-Identifier: Apache-2.0
// Reuses the memory of batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace accelerate::data {

/// Reuses memory without owner for the next batch: while a tensor or a view of it exists, its values stay. Thread-safe.
class BatchBufferPool {
 public:
  BatchBufferPool() = default;
  BatchBufferPool(const BatchBufferPool&) = delete;
  BatchBufferPool& operator=(const BatchBufferPool&) = delete;

  /// \returns uninitialised memory on the CPU; pinned for copies to an accelerator.
  [[nodiscard]] at::Tensor take(at::IntArrayRef sizes, at::ScalarType dtype, bool pinned = false);

 private:
  struct Piece {
    c10::Storage storage;
    bool pinned;
    int64_t idle = 0;  // number of searches in which the piece was free and not taken
  };
  /// Returns a free piece of that size, or a null storage. Releases pieces that were idle for a long time.
  c10::Storage find(size_t bytes, bool pinned);

  std::mutex mutex_;
  std::vector<Piece> pieces_;
};

}  // namespace accelerate::data

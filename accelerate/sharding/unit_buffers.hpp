// SPDX-License-Identifier: Apache-2.0
// Private: memory of whole units on the CPU, beside the heap.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace accelerate::sharding {

/// A pool of buffers for the whole parameters and gradients of units. Each buffer is a mapping of its own with room for
/// the largest unit, so that all units use the same few buffers in turn. In the heap the small blocks between them
/// would divide the memory that whole units leave free, and each unit would use other pages.
///
/// A buffer is reused when the last tensor that shares its memory is destroyed. Memory to which a collective, a view or
/// autograd still refers therefore never gets the values of another unit. Thread-safe.
class UnitBuffers {
 public:
  /// Unused buffers are kept while at most this many exist: two of parameters and two of gradients.
  static constexpr int64_t kKept = 4;
  /// Smaller tensors have memory of LibTorch's allocator, because a mapping costs system calls.
  static constexpr int64_t kMinBytes = int64_t{1} << 20;

  struct Counts {
    int64_t mapped = 0;     ///< buffers that exist
    int64_t used = 0;       ///< buffers with a tensor
    int64_t most_used = 0;  ///< the greatest value of `used`
    int64_t reuses = 0;     ///< tensors that got the memory of an earlier one
  };

  /// \param capacity_bytes  Size of the largest unit.
  explicit UnitBuffers(int64_t capacity_bytes);
  /// Unmaps the unused buffers. The others are unmapped with their last tensors.
  ~UnitBuffers();
  UnitBuffers(const UnitBuffers&) = delete;
  UnitBuffers& operator=(const UnitBuffers&) = delete;

  /// Returns a tensor with undefined values, [numel]. On an accelerator it has memory of LibTorch's allocator, which
  /// caches blocks of each size and stream.
  [[nodiscard]] at::Tensor take(int64_t numel, const c10::TensorOptions& options);
  /// Returns the memory of unused buffers to the system.
  void unmap_unused() noexcept;
  [[nodiscard]] Counts counts() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // also owned by the tensors, which may outlive the pool
};

}  // namespace accelerate::sharding

// SPDX-License-Identifier: Apache-2.0
// Private: finds out-of-memory errors behind C interfaces, which return an error code instead of the exception.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>

namespace accelerate::device {

/// Observes allocations of LibTorch on this thread while it exists. LibTorch's allocators report a failure to the
/// profiler of the thread, so nothing is observed while the thread is profiled.
class FailedAllocation {
 public:
  FailedAllocation();

  /// Throws the last failed allocation, as the allocator of the CPU throws it, or as c10::OutOfMemoryError. Returns if
  /// there is none.
  void rethrow() const;

 private:
  class Observer;

  std::shared_ptr<Observer> observer_;
  std::optional<c10::DebugInfoGuard> guard_;
};

}  // namespace accelerate::device

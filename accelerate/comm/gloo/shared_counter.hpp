// SPDX-License-Identifier: Apache-2.0
// Private: a counter in shared memory for which processes wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace accelerate::comm {

/// Increases, modulo 2^32. Memory of zeros is a counter with the value 0. Thread-safe.
class SharedCounter {
 public:
  [[nodiscard]] uint32_t value() const { return value_.load(); }
  /// True if the counter was set to this value or a later one. Everything that was written before is visible.
  [[nodiscard]] bool has_reached(uint32_t value) const {
    return static_cast<int32_t>(value_.load(std::memory_order_acquire) - value) >= 0;
  }

  /// Sets the value. Only one process may set it, and none may increment it.
  void set(uint32_t value);
  void increment();

  /// Waits until has_reached(), at most for this time. Returns has_reached().
  /// \param spins  True if the other process is probably running, so that a short wait need not sleep.
  bool wait_for(uint32_t value, std::chrono::nanoseconds at_most, bool spins);

 private:
  void wake_waiting();

  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> waiting_;  // threads that sleep until the next change
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace accelerate::comm

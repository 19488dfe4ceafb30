// SPDX-License-Identifier: Apache-2.0
// Private: memory beside the heap.
#pragma once

#include <cstddef>

namespace accelerate::deferred {

/// Address space. A page gets memory when it is written. All memory is returned to the system at once, while
/// freed blocks of the heap are divided by later small ones, and the heap grows.
class Pages {
 public:
  /// \throws std::bad_alloc
  explicit Pages(size_t bytes);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();
  [[nodiscard]] void* address() const { return address_; }

 private:
  size_t bytes_;
  void* address_;
};

}  // namespace accelerate::deferred

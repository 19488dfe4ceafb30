// SPDX-License-Identifier: Apache-2.0
// Takes glibc's allocation functions over for a program that links it; new and LibTorch's tensors end here too.
#include "bench/allocations.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {
std::atomic<int64_t> count{0};
void add_one() { count.fetch_add(1, std::memory_order_relaxed); }
}  // namespace

extern "C" {
void* malloc(size_t size) {
  add_one();
  return __libc_malloc(size);
}
void* calloc(size_t count_of, size_t size) {
  add_one();
  return __libc_calloc(count_of, size);
}
void* realloc(void* old, size_t size) {
  add_one();
  return __libc_realloc(old, size);
}
void* memalign(size_t alignment, size_t size) {
  add_one();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  add_one();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  add_one();
  void* made = __libc_memalign(alignment, size);
  if (made == nullptr) return ENOMEM;
  *out = made;
  return 0;
}
}

namespace bench {
int64_t allocations() { return count.load(std::memory_order_relaxed); }
}  // namespace bench

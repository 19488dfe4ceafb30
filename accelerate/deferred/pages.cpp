// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/pages.hpp"

#include <sys/mman.h>

#include <new>

namespace accelerate::deferred {

Pages::Pages(size_t bytes)
    : bytes_(bytes),
      address_(
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0)) {
  if (address_ == MAP_FAILED) throw std::bad_alloc();
}

Pages::~Pages() { munmap(address_, bytes_); }

}  // namespace accelerate::deferred

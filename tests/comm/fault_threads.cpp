// SPDX-License-Identifier: Apache-2.0
#include "fault_threads.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>

namespace {

std::atomic<int> threads_left = std::numeric_limits<int>::max();

}  // namespace

// Replaces the function of the C library.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) noexcept {
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return threads_left-- > 0 ? next(thread, attributes, run, argument) : EAGAIN;
}

namespace faults {

void refuse_threads_after(int count) { threads_left = count; }

}  // namespace faults

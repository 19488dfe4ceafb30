// SPDX-License-Identifier: Apache-2.0
// Counts host waits on a real GPU by intercepting the blocking calls of CUDA's runtime. A program's own definitions
// precede those of its libraries. Without CUDA they are never called.
#include <dlfcn.h>

#include <cstddef>

#include "tests/stand_in/world.hpp"

namespace {

/// CUDA's own function. Its symbols are versioned; dlsym also finds them without the version.
template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));  // NOLINT: as dlsym is
}

void count() {
  if (stand_in::on_gpu()) stand_in::count_host_wait(0);  // of one GPU
}

}  // namespace

extern "C" {
// NOLINTBEGIN: CUDA's names. cudaError_t is an enumeration without a type of its own, streams and events are pointers.
__attribute__((visibility("default"))) int cudaStreamSynchronize(void* stream) {
  static auto* const real = next<int(void*)>("cudaStreamSynchronize");
  count();
  return real(stream);
}
__attribute__((visibility("default"))) int cudaEventSynchronize(void* event) {
  static auto* const real = next<int(void*)>("cudaEventSynchronize");
  count();
  return real(event);
}
__attribute__((visibility("default"))) int cudaDeviceSynchronize() {
  static auto* const real = next<int()>("cudaDeviceSynchronize");
  count();
  return real();
}
__attribute__((visibility("default"))) int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  static auto* const real = next<int(void*, const void*, size_t, int)>("cudaMemcpy");
  count();
  return real(to, from, bytes, kind);
}
// NOLINTEND
}

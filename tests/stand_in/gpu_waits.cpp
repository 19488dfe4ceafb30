// SPDX-License-Identifier: Apache-2.0
// Waits of the host on a real GPU: those calls of CUDA's runtime that block, on their way there. A program's own
// definitions come before those of its libraries. Where there is no CUDA nobody calls them.
#include <dlfcn.h>

#include <cstddef>

#include "tests/stand_in/world.hpp"

namespace {

/// CUDA's own function. Its names bear a version, which dlsym does not ask for.
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

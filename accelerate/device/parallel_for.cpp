// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/parallel_for.hpp"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace accelerate::device {
namespace {

/// Annotation for the thread sanitizer, which does not see OpenMP's own synchronisation.
struct TaskHandoff {
  void submit() {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(this);
#endif
  }
  void take() {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(this);
#endif
  }
};

// Shared by all calls: a captured local object would itself be read before the acquire.
TaskHandoff begun, done;

}  // namespace

// The loop of TensorIterator is inside LibTorch, where OpenMP is enabled. It iterates over bytes that are never
// accessed: the address of a part within them gives its first index.
void parallel_for(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part) {
  grain = std::max<int64_t>(grain, 1);
  if (count <= grain) return part(0, count);
  const at::Tensor counted = at::empty({count}, at::kByte);
  const auto* const begin = static_cast<const char*>(counted.const_data_ptr());
  auto iterator = at::TensorIteratorConfig()
                      .set_check_mem_overlap(false)
                      .check_all_same_dtype(false)
                      .resize_outputs(false)
                      .add_output(counted)
                      .build();
  const auto walk = [&](char** data, const int64_t* strides, int64_t length, int64_t runs) {
    begun.take();
    for (int64_t run = 0; run < runs; ++run) part(data[0] + run * strides[1] - begin, length);
    done.submit();
  };
  begun.submit();
  iterator.for_each(walk, grain);
  done.take();
}

}  // namespace accelerate::device

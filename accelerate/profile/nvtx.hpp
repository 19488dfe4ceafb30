// SPDX-License-Identifier: Apache-2.0
// Emits LibTorch's recorded ranges as NVTX ranges for NVIDIA's Nsight Systems.
#pragma once

#include <ATen/record_function.h>

#include <optional>

#include "accelerate/base/error.hpp"

namespace accelerate::profile {

/// During its lifetime, operators, their backward and named ranges on this thread, and on threads that work for it, are
/// NVTX ranges. Uses LibTorch's stubs, which exist in builds with CUDA and need no GPU. A range that ends on another
/// thread is dropped.
class NvtxRanges {
 public:
  /// In a build without these stubs no ranges are emitted, and one message is logged.
  explicit NvtxRanges(const RankContext& place);
  ~NvtxRanges();
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

 private:
  std::optional<at::CallbackHandle> callback_;
};

}  // namespace accelerate::profile

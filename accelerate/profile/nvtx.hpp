// SPDX-License-Identifier: Apache-2.0
// What LibTorch records as NVTX ranges, for NVIDIA's Nsight Systems.
#pragma once

#include <ATen/record_function.h>

#include <optional>

#include "accelerate/base/error.hpp"

namespace accelerate::profile {

/// While it lives, operators, their backward and what is recorded by name on this thread, and on threads that work for
/// it, open and close ranges by LibTorch's own stubs: those of a build with CUDA, which needs no GPU for it. What ends
/// on another thread than it began on is no range.
class NvtxRanges {
 public:
  /// Without such a build nothing is marked, and a line of the log says so, once.
  explicit NvtxRanges(const Place& place);
  ~NvtxRanges();
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

 private:
  std::optional<at::CallbackHandle> callback_;
};

}  // namespace accelerate::profile

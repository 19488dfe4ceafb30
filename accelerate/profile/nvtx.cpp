// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/nvtx.hpp"

#include <torch/csrc/profiler/stubs/base.h>

#include <memory>

#include "accelerate/base/log.hpp"

namespace accelerate::profile {
namespace {

using torch::profiler::impl::cudaStubs;

std::unique_ptr<at::ObserverContext> open_range(const at::RecordFunction& function) {
  if (!function.isAsync()) cudaStubs()->rangePush(function.name());
  return nullptr;
}

void close_range(const at::RecordFunction& function, at::ObserverContext*) {
  if (!function.isAsync()) cudaStubs()->rangePop();
}

}  // namespace

NvtxRanges::NvtxRanges(const RankContext& place) {
  if (!cudaStubs()->enabled()) {
    base::log_once(
        base::LogLevel::warning, place,
        "profile: nvtx is true, and this LibTorch was built without CUDA, which has NVTX: no ranges are recorded");
    return;
  }
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&open_range, &close_range)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

NvtxRanges::~NvtxRanges() {
  if (callback_) at::removeCallback(*callback_);
}

}  // namespace accelerate::profile

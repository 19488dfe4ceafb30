// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/choose.hpp"

#include <c10/util/Exception.h>

#ifdef ACCELERATE_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace accelerate::device {
namespace {

c10::Device parse(const std::string& text, const Place& place) {
  try {
    return c10::Device(text);
  } catch (const c10::Error&) {
    base::fail(ErrorKind::environment, place, "device",
               "torch_device (ACCELERATE_TORCH_DEVICE) is '{}', must be a device of LibTorch, like cpu, cuda or cuda:1",
               text);
  }
}

}  // namespace

int64_t gpu_count() noexcept {
#ifdef ACCELERATE_HAS_CUDA
  return c10::cuda::device_count();
#else
  return 0;
#endif
}

c10::Device choose(const env::ProcessEnv& process, const env::Settings& settings, int64_t gpus, const Place& place) {
  if (settings.torch_device) return parse(*settings.torch_device, place);
  if (settings.cpu || gpus == 0) return c10::kCPU;
  if (process.local_world_size > gpus && !settings.allow_shared_gpus) {
    base::fail(
        ErrorKind::device, place, "device",
        "{} ranks on this machine, {} GPU{} visible; start at most {}, run on the CPU (ACCELERATE_USE_CPU=1), or "
        "set ACCELERATE_ALLOW_SHARED_GPUS=1, which is also right where every rank sees only its own GPU",
        process.local_world_size, gpus, gpus == 1 ? "" : "s", gpus);
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(process.local_rank % gpus)};
}

}  // namespace accelerate::device

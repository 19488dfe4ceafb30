// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/choose.hpp"

#ifdef ACCELERATE_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace accelerate::device {
namespace {

std::string visible(int64_t gpus) { return fmt::format("{} GPU{} visible", gpus, gpus == 1 ? " is" : "s are"); }

void check_there(const env::DeviceName& asked, int64_t gpus, const Place& place) {
  if (asked.index.value_or(0) < gpus) return;
  base::fail(
      ErrorKind::device, place, "device",
      "cuda{} is asked for (device in the code, ACCELERATE_TORCH_DEVICE or torch_device in the config file), {}; "
      "ask for {}cpu, or look at nvidia-smi and CUDA_VISIBLE_DEVICES",
      asked.index ? fmt::format(":{}", *asked.index) : "", visible(gpus),
      gpus == 0 ? "" : fmt::format("at most cuda:{} or ", gpus - 1));
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
  const auto& asked = settings.torch_device;
  if (asked && !asked->cuda) return c10::kCPU;
  if (asked) check_there(*asked, gpus, place);
  if (asked && asked->index) return {c10::kCUDA, static_cast<c10::DeviceIndex>(*asked->index)};
  if (!asked && (settings.cpu || gpus == 0)) return c10::kCPU;
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

// SPDX-License-Identifier: Apache-2.0
#include <ATen/cuda/CUDAContext.h>
#include <cuda.h>

#include "accelerate/nn/compiled_host.hpp"

namespace accelerate::nn::compiled {

DeviceProperties properties_of(c10::Device device) {
  if (!device.is_cuda()) return {};
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  return {.cuda = fmt::format("{}.{}", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10),
          .capability = fmt::format("{}.{}", properties->major, properties->minor)};
}

}  // namespace accelerate::nn::compiled

// SPDX-License-Identifier: Apache-2.0
#include <ATen/cuda/CUDAContext.h>

#include "accelerate/nn/compiled_host.hpp"

namespace accelerate::nn::compiled {

std::string compute_capability(c10::Device device) {
  if (!device.is_cuda()) return {};
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  return fmt::format("{}.{}", properties->major, properties->minor);
}

}  // namespace accelerate::nn::compiled

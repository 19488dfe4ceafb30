// SPDX-License-Identifier: Apache-2.0
// For builds without LibTorch's CUDA part.
#include "accelerate/nn/compiled_host.hpp"

namespace accelerate::nn::compiled {

DeviceProperties properties_of(c10::Device) { return {}; }

}  // namespace accelerate::nn::compiled

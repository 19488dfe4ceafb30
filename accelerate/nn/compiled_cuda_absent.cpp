// SPDX-License-Identifier: Apache-2.0
// For builds without LibTorch's CUDA part.
#include "accelerate/nn/compiled_host.hpp"

namespace accelerate::nn::compiled {

std::string compute_capability(c10::Device) { return {}; }

}  // namespace accelerate::nn::compiled

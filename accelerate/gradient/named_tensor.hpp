// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace accelerate::gradient {

/// A parameter or buffer with its name in the module. This folder does not use modules.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace accelerate::gradient

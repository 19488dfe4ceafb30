// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace accelerate::gradient {

/// A parameter or buffer and the name the user knows it by. This room sees no modules, only these.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace accelerate::gradient

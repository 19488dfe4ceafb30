// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint that several files contain in parts. They are read when a rank needs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace accelerate::state {

/// Elements of a tensor in row-major order, beginning with element `begin`: a one-dimensional tensor.
struct SavedElements {
  int64_t begin = 0;
  at::Tensor values{};
};

/// Returns the elements [begin, end) of a tensor of which only a placeholder was loaded: a tensor on the meta device
/// with the shape and the dtype of the saved one. The pieces ascend and have no gap; they may refer to mapped files.
/// Throws Error (data) if elements are missing.
using ReadElements =
    std::function<std::vector<SavedElements>(const at::Tensor& placeholder, int64_t begin, int64_t end)>;

}  // namespace accelerate::state

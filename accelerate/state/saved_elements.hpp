// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint that several files contain in parts. They are read when a rank needs them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

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

/// Returns a saved tensor, or the whole tensor of a placeholder.
[[nodiscard]] inline at::Tensor whole_of(const at::Tensor& saved, const ReadElements& read) {
  if (!saved.is_meta()) return saved;
  std::vector<at::Tensor> values;
  for (const SavedElements& piece : read(saved, 0, saved.numel())) values.push_back(piece.values);
  return at::cat(values).reshape(saved.sizes());
}

}  // namespace accelerate::state

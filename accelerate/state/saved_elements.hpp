// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint that several files contain in parts. They are read when a rank needs them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace accelerate::state {

/// Elements of a tensor in row-major order, beginning with element `begin`: a one-dimensional tensor. If a file does
/// not align the elements for their dtype, the tensor contains their bytes and has the dtype uint8.
struct SavedElements {
  int64_t begin = 0;
  at::Tensor values{};
};

/// Returns the elements [begin, end) of a tensor of which only a placeholder was loaded: a tensor on the meta device
/// with the shape and the dtype of the saved one. The pieces ascend and have no gap; they may refer to mapped files.
/// Throws Error (data) if elements are missing.
using ReadElements =
    std::function<std::vector<SavedElements>(const at::Tensor& placeholder, int64_t begin, int64_t end)>;

/// Returns the destination and the source of the copy of a piece.
///
/// \param saved  The placeholder of the piece.
/// \param flat   One-dimensional elements from `first` on, of any dtype.
[[nodiscard]] inline std::pair<at::Tensor, at::Tensor> copy_of(const SavedElements& piece, const at::Tensor& saved,
                                                               const at::Tensor& flat, int64_t first) {
  const bool are_bytes = piece.values.scalar_type() != saved.scalar_type();
  const int64_t length = piece.values.numel() / (are_bytes ? saved.element_size() : 1);
  const at::Tensor to = flat.narrow(0, piece.begin - first, length);
  if (!are_bytes) return {to, piece.values};
  if (to.scalar_type() == saved.scalar_type()) return {to.view(at::kByte), piece.values};
  return {to, piece.values.clone().view(saved.scalar_type())};
}

/// Returns a saved tensor, or the whole tensor of a placeholder.
[[nodiscard]] inline at::Tensor whole_of(const at::Tensor& saved, const ReadElements& read) {
  if (!saved.is_meta()) return saved;
  at::Tensor whole = at::empty(saved.sizes(), saved.options().device(c10::kCPU));
  const at::Tensor flat = whole.view({-1});
  for (const SavedElements& piece : read(saved, 0, saved.numel())) {
    const auto [to, from] = copy_of(piece, saved, flat, 0);
    to.copy_(from);
  }
  return whole;
}

}  // namespace accelerate::state

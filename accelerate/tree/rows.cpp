// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree/rows.hpp"

#include <ATen/ops/cat.h>

namespace accelerate::tree::detail {
namespace {

bool goes_with(const at::Tensor& like, const RowPiece<at::Tensor>& piece) {
  const at::Tensor& tensor = *piece.of;
  return tensor.defined() && tensor.dim() == like.dim() && tensor.scalar_type() == like.scalar_type() &&
         tensor.device() == like.device() && tensor.sizes().slice(1) == like.sizes().slice(1) &&
         piece.first + piece.count <= tensor.size(0);
}

}  // namespace

bool join_tensors(at::Tensor& out, int64_t rows, const std::vector<RowPiece<at::Tensor>>& pieces) {
  if (!out.defined() || out.dim() == 0 || out.size(0) != rows) return true;  // not one per row: stays
  std::vector<at::Tensor> slices;
  for (const auto& piece : pieces) {
    if (!goes_with(out, piece)) return false;
    slices.push_back(piece.of->narrow(0, piece.first, piece.count));
  }
  out = at::cat(slices);
  return true;
}

}  // namespace accelerate::tree::detail

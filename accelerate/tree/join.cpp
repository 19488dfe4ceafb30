// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree/join.hpp"

#include <ATen/ops/cat.h>

namespace accelerate::tree::detail {
namespace {

/// Returns the first dimension; -1 for a tensor without dimensions, -2 for an undefined one.
int64_t size_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return -2;
  return tensor.dim() == 0 ? -1 : tensor.size(0);
}

bool matches_sample(const at::Tensor& like, const at::Tensor& tensor) {
  return tensor.dim() == like.dim() && tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device() &&
         tensor.sizes().slice(1) == like.sizes().slice(1);
}

}  // namespace

bool join_tensors(at::Tensor& out, Joined& joined, const std::vector<PartPiece<at::Tensor>>& pieces) {
  const Sizes sizes = sizes_of(out, joined.rows, pieces, size_of);
  if (!sizes.one_per_row) {
    if (sizes.equal) take_first(out, pieces);
    return sizes.equal;
  }
  std::vector<at::Tensor> slices;
  for (const auto& piece : pieces) {
    if (!matches_sample(out, *piece.of)) return false;
    slices.push_back(piece.of->narrow(0, piece.first, piece.count));
  }
  out = at::cat(slices);
  ++joined.parts;
  return true;
}

}  // namespace accelerate::tree::detail

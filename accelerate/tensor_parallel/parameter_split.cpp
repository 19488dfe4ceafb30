// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/parameter_split.hpp"

#include <ATen/ops/cat.h>

#include "accelerate/tensor_parallel/split_record.hpp"

namespace accelerate::nn {

at::Tensor part_of(const at::Tensor& whole, const ParameterSplit& split, int64_t rank, int64_t ranks) {
  const int64_t block = whole.size(split.dim) / split.blocks, size = block / ranks;
  std::vector<at::Tensor> pieces;
  for (int64_t i = 0; i < split.blocks; ++i) {
    pieces.push_back(whole.detach().narrow(split.dim, i * block + rank * size, size));
  }
  return at::cat(pieces, split.dim).contiguous();
}

at::Tensor whole_of(const std::vector<at::Tensor>& parts, const ParameterSplit& split) {
  std::vector<at::Tensor> pieces;
  for (int64_t i = 0; i < split.blocks; ++i) {
    for (const at::Tensor& part : parts) {
      const int64_t size = part.size(split.dim) / split.blocks;
      pieces.push_back(part.detach().narrow(split.dim, i * size, size));
    }
  }
  return at::cat(pieces, split.dim).contiguous();
}

at::Tensor SplitLayer::part(const at::Tensor& whole, const ParameterSplit& split) const {
  if (!whole.defined()) return {};
  at::Tensor own = part_of(whole, split, group_.rank(), group_.size());
  if (group_.size() > 1) record_part(own, {.part = group_.rank(), .parts = group_.size(), .split = split});
  return own;
}

at::Tensor SplitLayer::copy_of(const at::Tensor& whole) {
  return whole.defined() ? whole.detach().clone() : at::Tensor();
}

}  // namespace accelerate::nn

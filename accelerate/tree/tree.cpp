// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree/tree.hpp"

#include <ATen/ops/cat.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace accelerate::tree::detail {
namespace {

at::Tensor with_rows(const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor.reshape({1}) : tensor; }

void check_like(const at::Tensor& first, const at::Tensor& other, size_t value, size_t number, int64_t dim) {
  bool same = first.dim() == other.dim();
  if (dim < 0) dim += first.dim();
  for (int64_t d = 0; same && d < first.dim(); ++d) same = d == dim || first.size(d) == other.size(d);
  if (same && dim >= 0 && dim < first.dim()) return;
  base::fail(ErrorKind::usage, {}, "concat",
             "tensor {} is [{}] in value 0, [{}] in value {}; only dimension {} may differ", number,
             fmt::join(first.sizes(), ", "), fmt::join(other.sizes(), ", "), value, dim);
}

}  // namespace

std::vector<at::Tensor> concat(const std::vector<std::vector<at::Tensor>>& values, int64_t dim) {
  if (values.empty()) base::fail(ErrorKind::usage, {}, "concat", "0 values, must be at least 1");
  const size_t tensors = values.front().size();
  for (size_t v = 0; v < values.size(); ++v)
    if (values[v].size() != tensors)
      base::fail(ErrorKind::usage, {}, "concat",
                 "value 0 holds {} tensors, value {} holds {}; structures must be equal", tensors, v, values[v].size());

  std::vector<at::Tensor> joined(tensors);
  for (size_t i = 0; i < tensors; ++i) {
    std::vector<at::Tensor> pieces;
    for (size_t v = 0; v < values.size(); ++v) {
      pieces.push_back(with_rows(values[v][i]));
      check_like(pieces.front(), pieces.back(), v, i, dim);
    }
    joined[i] = at::cat(pieces, dim);
  }
  return joined;
}

at::Tensor slice_rows(const at::Tensor& tensor, int64_t first, int64_t count) {
  if (first < 0 || count < 0)
    base::fail(ErrorKind::usage, {}, "slice_rows", "first is {} and count {}, both must be at least 0", first, count);
  if (tensor.dim() == 0) return tensor;
  const int64_t begin = std::min(first, tensor.size(0));
  return tensor.narrow(0, begin, std::min(count, tensor.size(0) - begin));
}

void fail_rebuild(size_t tensors, size_t expected) {
  base::fail(ErrorKind::usage, {}, "rebuild", "{} tensors given, the structure holds {}", tensors, expected);
}

}  // namespace accelerate::tree::detail

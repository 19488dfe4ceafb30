// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/rows.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

namespace accelerate::data::detail {

at::Tensor select(const at::Tensor& tensor, const at::Tensor& indices) { return tensor.index_select(0, indices); }

at::Tensor room(const at::Tensor& tensor, int64_t rows) {
  auto shape = tensor.sizes().vec();
  shape.front() = rows;
  return at::empty(shape, tensor.options().requires_grad(false));
}

bool place(at::Tensor& into, const at::Tensor& rows, const at::Tensor& places) {
  if (rows.sizes().slice(1) != into.sizes().slice(1) || rows.scalar_type() != into.scalar_type()) return false;
  into.index_copy_(0, places, rows.detach());
  return true;
}

}  // namespace accelerate::data::detail

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/sparse.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <utility>
#include <vector>

namespace accelerate::gradient {
namespace {

// Returns this rank's rows: indices [nnz, sparse_dim] and values [nnz, ...].
std::pair<at::Tensor, at::Tensor> rows_of(const at::Tensor& gradient, const at::Tensor& parameter, int64_t sparse_dim) {
  if (!gradient.defined()) {
    std::vector<int64_t> shape = parameter.sizes().slice(static_cast<size_t>(sparse_dim)).vec();
    shape.insert(shape.begin(), 0);
    return {at::empty({0, sparse_dim}, parameter.options().dtype(at::kLong).requires_grad(false)),
            at::empty(shape, parameter.options().requires_grad(false))};
  }
  const at::Tensor rows = gradient.is_sparse() ? gradient.coalesce() : gradient.to_sparse(sparse_dim);
  return {rows._indices().t().contiguous(), rows._values().contiguous()};
}

}  // namespace

at::Tensor reduce_sparse(const comm::Group& group, const at::Tensor& gradient, const at::Tensor& parameter,
                         int64_t sparse_dim, double factor) {
  const auto [indices, values] = rows_of(gradient, parameter, sparse_dim);
  const at::Tensor all_indices = group.all_gather(indices);
  const at::Tensor all_values = group.all_gather(values).mul(factor);
  return at::sparse_coo_tensor(all_indices.t(), all_values, parameter.sizes(), all_values.options().layout(at::kSparse))
      .coalesce();
}

}  // namespace accelerate::gradient

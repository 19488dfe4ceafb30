// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sample.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::data::detail {

at::Tensor row_of(const at::Tensor& tensor, int64_t row, int64_t rows) {
  return tensor.defined() && tensor.dim() > 0 && tensor.size(0) == rows ? tensor.select(0, row) : tensor;
}

void check_list(int64_t items, int64_t rows) {
  if (items == rows) return;
  base::fail(ErrorKind::data, {}, "sample", "a list of the batch has {} items, the batch {} samples; must be one each",
             items, rows);
}

}  // namespace accelerate::data::detail

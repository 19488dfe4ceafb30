// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/derived_source.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

at::Tensor checked_indices(std::string_view source, const at::Tensor& indices, int64_t samples) {
  if (!indices.defined() || indices.dim() != 1 || indices.scalar_type() != at::kLong || !indices.is_cpu()) {
    base::fail(ErrorKind::usage, {}, source, "the indices are {}, must be [B] int64 on the CPU",
               indices.defined() ? indices.toString() + c10::str(indices.sizes()) : "no tensor");
  }
  const at::Tensor own = indices.contiguous();
  const auto* const numbers = own.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < own.numel(); ++i) {
    if (numbers[i] >= 0 && numbers[i] < samples) continue;
    base::fail(ErrorKind::usage, {}, source, "sample {} is requested, there are {} samples", numbers[i], samples);
  }
  return own;
}

at::Tensor index_tensor(const std::vector<int64_t>& numbers) {
  auto tensor = at::empty({static_cast<int64_t>(numbers.size())}, at::TensorOptions().dtype(at::kLong));
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

void check_source(std::string_view combinator, bool there) {
  if (!there) base::fail(ErrorKind::usage, {}, combinator, "the source is a null pointer");
}

}  // namespace accelerate::data

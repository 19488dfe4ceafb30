// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/tensor_form.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "accelerate/base/error.hpp"

namespace accelerate::pipeline {

TensorForm form_of(const at::Tensor& tensor) { return {tensor.scalar_type(), tensor.sizes().vec()}; }

std::string describe_form(const TensorForm& form) {
  return fmt::format("[{}] {}", fmt::join(form.sizes, ", "), c10::toString(form.dtype));
}

at::Tensor encode(const TensorForm& form) {
  if (form.sizes.size() > TensorForm::kMaxDims) {
    base::fail(ErrorKind::usage, {}, "Pipeline", "an activation has {} dimensions, at most {} are supported",
               form.sizes.size(), TensorForm::kMaxDims);
  }
  at::Tensor message = at::zeros({TensorForm::kWords}, at::kLong);
  auto* const words = message.mutable_data_ptr<int64_t>();
  words[0] = static_cast<int64_t>(form.dtype);
  words[1] = static_cast<int64_t>(form.sizes.size());
  std::copy(form.sizes.begin(), form.sizes.end(), words + 2);
  return message;
}

TensorForm decode_form(const at::Tensor& message) {
  const auto* const words = message.const_data_ptr<int64_t>();
  return {static_cast<at::ScalarType>(words[0]), {words + 2, words + 2 + words[1]}};
}

}  // namespace accelerate::pipeline

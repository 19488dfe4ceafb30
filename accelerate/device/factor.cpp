// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/factor.hpp"

#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include "accelerate/base/version_counter.hpp"

namespace accelerate::device {
namespace {

// Above it, LibTorch divides an operator among its threads.
constexpr int64_t kSmall = 32768;

bool is_dense_on_cpu(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_neg() &&
         tensor.is_non_overlapping_and_dense();
}

template <typename Element>
void multiply_elements(const at::Tensor& from, Element factor, void* to) {
  const int64_t count = from.numel();
  const auto* source = from.const_data_ptr<Element>();
  auto* target = static_cast<Element*>(to);
  for (int64_t i = 0; i < count; ++i) target[i] = source[i] * factor;
}

}  // namespace

Factor::Factor(double value) : value_(value), tensor_(at::scalar_tensor(value, at::kDouble)) {
  tensor_.unsafeGetTensorImpl()->set_wrapped_number(true);
}

bool Factor::multiply_small(const at::Tensor& from, at::IntArrayRef strides, void* to) const {
  const at::ScalarType dtype = from.scalar_type();
  if (from.numel() > kSmall || (dtype != at::kFloat && dtype != at::kDouble)) return false;
  if (!is_dense_on_cpu(from) || from.strides() != strides) return false;
  dtype == at::kFloat ? multiply_elements(from, static_cast<float>(value_), to) : multiply_elements(from, value_, to);
  return true;
}

void Factor::multiply(const at::Tensor& from, at::Tensor& to) const {
  const bool is_small = from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() && is_dense_on_cpu(to) &&
                        multiply_small(from, to.strides(), to.mutable_data_ptr());
  is_small ? base::count_write(to) : void(at::mul_out(to, from, tensor_));
}

}  // namespace accelerate::device

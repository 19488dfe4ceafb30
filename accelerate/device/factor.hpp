// SPDX-License-Identifier: Apache-2.0
// Private: a number by which tensors are multiplied.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::device {

/// Like a literal, it does not promote the dtype of its operand.
class Factor {
 public:
  explicit Factor(double value);

  [[nodiscard]] double value() const { return value_; }
  /// The number as a tensor, for operators.
  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }

  /// Writes value() * from to `to`, with the bits of at::mul_out(). Call it without grad mode. For a small tensor on
  /// the CPU it takes a quarter of the operator's time, which is longer than that of the elements. \param to  Has the
  /// sizes and the dtype of `from`.
  void multiply(const at::Tensor& from, at::Tensor& to) const;
  /// Writes value() * from to memory with the given strides, without a tensor for it. Returns false, and writes
  /// nothing, if `from` is large, has other strides, or is no dense float32 or float64 tensor of the CPU. \param to
  /// Room for from.numel() elements of its dtype.
  [[nodiscard]] bool multiply_small(const at::Tensor& from, at::IntArrayRef strides, void* to) const;

 private:
  double value_;
  at::Tensor tensor_;
};

}  // namespace accelerate::device

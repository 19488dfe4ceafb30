// SPDX-License-Identifier: Apache-2.0
// Access to a tensor's memory as bytes, for operations that move data without computing. Tensors must be contiguous.
// Private.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace accelerate::comm {

inline int64_t byte_count(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

inline char* at_byte(const at::Tensor& tensor, int64_t byte) {
  return static_cast<char*>(tensor.mutable_data_ptr()) + byte;
}

/// Returns a contiguous tensor with conjugation and negation bits resolved, so that its memory contains its values.
inline at::Tensor dense_of(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;  // three dispatched calls less
  return tensor.contiguous().resolve_conj().resolve_neg();
}

/// Returns a flat view of the same memory. Tensors with at most one element count as contiguous for any stride.
inline at::Tensor as_bytes(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.reshape({-1});
  return (flat.stride(0) == 1 ? flat : flat.as_strided({flat.numel()}, {1})).view(at::kByte);
}

}  // namespace accelerate::comm

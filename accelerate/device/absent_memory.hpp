// SPDX-License-Identifier: Apache-2.0
// Private to the library: access to LibTorch's internals for tensors that have no memory for a while.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/OptionalArrayRef.h>

#include <optional>

namespace accelerate::device {

/// Returns a tensor whose storage has its size and no memory.
/// \param strides  If unset, those of the memory format, which is contiguous by default.
[[nodiscard]] at::Tensor empty_without_memory(at::IntArrayRef sizes, at::OptionalIntArrayRef strides,
                                              c10::ScalarType dtype, c10::Device device,
                                              std::optional<c10::MemoryFormat> memory_format = std::nullopt);

/// Returns the storage without a check of its memory.
[[nodiscard]] c10::StorageImpl* storage_of(const at::Tensor& tensor);

/// Returns the dispatch keys of the tensor, which may be changed.
[[nodiscard]] c10::DispatchKeySet& dispatch_keys_of(const at::Tensor& tensor);

/// If true, every access to the memory that is not an operator throws a c10::Error. Its text is
/// `custom_data_ptr_error_msg_` of the storage's extra data.
void refuse_data(c10::StorageImpl& storage, bool refused);
/// If access to the memory is refused, runs an operator on no elements of the tensor, so that the owner of the memory
/// makes it available. For code that reads or writes the memory of any tensor without an operator.
/// \throws whatever the owner throws.
void require_data(const at::Tensor& tensor);

/// Returns false if the operator needs only shapes of its arguments. If such an operator is a composite that copies
/// after all, as flatten() of a tensor that is not contiguous, then the copy inside it is dispatched, too.
[[nodiscard]] bool needs_values(const c10::FunctionSchema& schema);

/// Returns true for some frequent operators that return a view and never copy. No operator inside them needs values.
[[nodiscard]] bool is_view(const c10::FunctionSchema& schema);

}  // namespace accelerate::device

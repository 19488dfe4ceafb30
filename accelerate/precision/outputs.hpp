// SPDX-License-Identifier: Apache-2.0
// Casts the results of a low-precision forward to full precision.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace accelerate::precision {

/// Casts float16 and bfloat16 to dtype. Other tensors, including undefined ones, are unchanged.
[[nodiscard]] at::Tensor to_output(const at::Tensor& tensor, c10::ScalarType dtype);

/// The same for TorchScript results: tensors within tuples, named tuples, lists, dictionaries and optionals. Lists and
/// dictionaries are copied; other values without tensors are unchanged.
[[nodiscard]] c10::IValue to_output(const c10::IValue& value, c10::ScalarType dtype);

}  // namespace accelerate::precision

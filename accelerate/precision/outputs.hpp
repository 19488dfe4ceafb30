// SPDX-License-Identifier: Apache-2.0
// Results of a low-precision forward, given back in full precision.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace accelerate::precision {

/// float16 and bfloat16 become dtype; everything else stays as it is, undefined tensors too.
[[nodiscard]] at::Tensor to_output(const at::Tensor& tensor, c10::ScalarType dtype);

/// The same for what TorchScript returns: tensors within tuples, named tuples, lists, dictionaries and optionals. What
/// holds none stays as it is; lists and dictionaries are copied.
[[nodiscard]] c10::IValue to_output(const c10::IValue& value, c10::ScalarType dtype);

}  // namespace accelerate::precision

// SPDX-License-Identifier: Apache-2.0
// Private to the library: tensors without memory until an operator needs their values.
//
// While a thread defers, a boxed fallback of a dispatch key runs before each of its operators. Tensors that it creates
// have the same key, which views inherit, so that the fallback runs for them on every thread and at any time.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::deferred {

/// Begins or ends deferral on this thread.
/// \returns The state before.
/// \throws Error (environment) if another library in this process uses the dispatch key.
bool set_deferring(bool deferring);
[[nodiscard]] bool is_deferring();

/// Gives the tensor memory and its values, if it has none.
void materialize_tensor(const at::Tensor& tensor);

/// True if the memory of the tensor is absent.
[[nodiscard]] bool is_deferred(const at::Tensor& tensor);

}  // namespace accelerate::deferred

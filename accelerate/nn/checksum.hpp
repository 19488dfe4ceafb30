// SPDX-License-Identifier: Apache-2.0
// A tensor's bits as one number.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::nn {

/// A sum over the bits of the values in their logical order, each mixed with its place: any single bit that differs
/// changes it, values that changed places do too. 0.0 and -0.0 differ, a NaN is equal to itself and not to another.
///
/// returns   0-dim int64 on the tensor's device, the same on every device; no host wait. Of sparse tensors: of indices
///           and values; 0 where there are no values.
at::Tensor checksum(const at::Tensor& tensor);

}  // namespace accelerate::nn

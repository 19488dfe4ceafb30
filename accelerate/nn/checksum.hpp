// SPDX-License-Identifier: Apache-2.0
// A tensor's bits as one number.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::nn {

/// A sum over the bits of the values in logical order, each mixed with its position: any single differing bit changes
/// it, and so do exchanged values. 0.0 and -0.0 differ; a NaN equals itself and no other NaN.
///
/// \returns 0-dim int64 on the tensor's device, equal on every device, without a host wait. For sparse tensors over
///          indices and values; 0 without values.
at::Tensor checksum(const at::Tensor& tensor);

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
// Checksum of the bits of a tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::nn {

/// Sums the bits of the values in logical order, each mixed with its position: any single differing bit changes the
/// result, and so do exchanged values. 0.0 and -0.0 differ; a NaN equals only a NaN with the same bits.
///
/// \returns 0-dim int64 on the tensor's device, equal on every device, without a host wait. For sparse tensors over
///          indices and values; 0 without values.
at::Tensor checksum(const at::Tensor& tensor);

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
// Memory formats of modules and batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "accelerate/env/memory_format.hpp"
#include "accelerate/gradient/named_tensor.hpp"

namespace accelerate::prepared {

/// Returns the tensor in the memory format, on its device. The result is the tensor itself if it has that format, is
/// not dense or quantized, or does not have the format's number of dimensions: 4 for channels_last, 5 for
/// channels_last_3d.
[[nodiscard]] at::Tensor in_memory_format(const at::Tensor& tensor, env::MemoryFormat format);

/// Reorders the tensors and their gradients in place: each tensor stays the same object. Does nothing for contiguous.
void set_memory_format(const std::vector<gradient::NamedTensor>& tensors, env::MemoryFormat format);

}  // namespace accelerate::prepared

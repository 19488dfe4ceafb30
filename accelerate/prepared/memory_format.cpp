// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/memory_format.hpp"

#include <ATen/core/grad_mode.h>

namespace accelerate::prepared {

at::Tensor in_memory_format(const at::Tensor& tensor, env::MemoryFormat format) {
  if (format == env::MemoryFormat::contiguous) return tensor;
  const bool is_3d = format == env::MemoryFormat::channels_last_3d;
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized()) return tensor;
  if (tensor.dim() != (is_3d ? 5 : 4)) return tensor;
  // Unlike contiguous(), to() also sets the strides of axes of size 1, by which LibTorch recognises the format.
  return tensor.to(tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/false,
                   is_3d ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast);
}

void set_memory_format(const std::vector<gradient::NamedTensor>& tensors, env::MemoryFormat format) {
  if (format == env::MemoryFormat::contiguous) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor reordered = in_memory_format(tensor, format);
    if (!reordered.is_same(tensor)) tensor.set_data(reordered);
    // A fused step needs gradients in the memory order of their parameters.
    at::Tensor& gradient = tensor.mutable_grad();
    if (gradient.defined()) gradient = in_memory_format(gradient, format);
  }
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
// Private: arguments of autograd functions under autocast.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace accelerate::nn {

/// Converts an argument to the dtype of autocast, because autocast does not convert arguments of autograd functions.
inline at::Tensor for_autocast(const at::Tensor& tensor) {
  const auto device = tensor.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

/// As above for an argument that may be undefined.
inline std::optional<at::Tensor> optional_for_autocast(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(for_autocast(tensor)) : std::nullopt;
}

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
// Private: parameters on a device without memory there.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::offload {

/// Replaces the memory of a tensor by a new storage on the device, row-major and without memory. The tensor object
/// stays the same, and so does its version.
void take_memory(const at::Tensor& tensor, c10::Device device);
/// The same on the CPU, with another dtype.
void take_memory(const at::Tensor& tensor, c10::ScalarType dtype);

/// Replaces the memory of a tensor by that of another one, on any device.
void set_values(const at::Tensor& tensor, const at::Tensor& values);

}  // namespace accelerate::offload

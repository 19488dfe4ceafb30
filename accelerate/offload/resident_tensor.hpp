// SPDX-License-Identifier: Apache-2.0
// Private: tensors that stay on one of several devices of a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace accelerate::offload {

/// Moves a parameter or buffer to the device. The other arguments of operators on it are copied there, too.
void keep_on_device(const std::string& name, const at::Tensor& tensor, c10::Device device);

/// Moves a parameter or buffer to the device, as Module::to() does.
void move_to_device(const at::Tensor& tensor, c10::Device device);

}  // namespace accelerate::offload

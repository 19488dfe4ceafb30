// SPDX-License-Identifier: Apache-2.0
// Tensors of the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tests/stand_in/blocks.hpp"

namespace stand_in {

bool is_ours(const at::Tensor& tensor);

/// The same memory as a CPU tensor. Only for jobs.
at::Tensor as_cpu(const at::Tensor& tensor);

/// Records that a job will use the tensor's memory, from its first element to its last.
void touch(std::vector<Touch>& touches, const at::Tensor& tensor, bool write);

at::Tensor make(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::DeviceIndex device);

/// Device memory of another size with the same content.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace stand_in

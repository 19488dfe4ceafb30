// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/absent_tensor.hpp"

#include "accelerate/device/absent_memory.hpp"

namespace accelerate::offload {
namespace {

void take_memory(const at::Tensor& tensor, c10::ScalarType dtype, c10::Device device) {
  const at::Tensor absent = device::empty_without_memory(tensor.sizes(), /*strides=*/std::nullopt, dtype, device);
  device::storage_of(absent)->set_allocator(nullptr);
  set_values(tensor, absent);
}

}  // namespace

void take_memory(const at::Tensor& tensor, c10::Device device) { take_memory(tensor, tensor.scalar_type(), device); }

void take_memory(const at::Tensor& tensor, c10::ScalarType dtype) { take_memory(tensor, dtype, c10::kCPU); }

void set_values(const at::Tensor& tensor, const at::Tensor& values) { tensor.set_data(values.detach()); }

}  // namespace accelerate::offload

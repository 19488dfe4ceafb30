// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/absent_tensor.hpp"

#include "accelerate/device/absent_memory.hpp"

namespace accelerate::offload {

void take_memory(const at::Tensor& tensor, c10::Device device) {
  const at::Tensor absent =
      device::empty_without_memory(tensor.sizes(), /*strides=*/std::nullopt, tensor.scalar_type(), device);
  device::storage_of(absent)->set_allocator(nullptr);
  set_values(tensor, absent);
}

void set_values(const at::Tensor& tensor, const at::Tensor& values) { tensor.set_data(values.detach()); }

}  // namespace accelerate::offload

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/absent_tensor.hpp"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>

#include <vector>

#include "accelerate/device/absent_memory.hpp"

namespace accelerate::offload {
namespace {

struct NoAllocator final : c10::Allocator {
  explicit NoAllocator(c10::Device the_device) : device(the_device) {}
  c10::DataPtr allocate(size_t) override { return {nullptr, device}; }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
  c10::Device device;
};

std::vector<int64_t> row_major_strides(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

}  // namespace

void take_memory(const at::Tensor& tensor, c10::Device device) {
  NoAllocator allocator(device);
  const c10::DispatchKeySet keys(c10::computeDispatchKey(tensor.scalar_type(), c10::kStrided, device));
  const at::Tensor absent(at::detail::empty_strided_generic(tensor.sizes(), row_major_strides(tensor.sizes()),
                                                            &allocator, keys, tensor.scalar_type()));
  device::storage_of(absent)->set_allocator(nullptr);
  set_values(tensor, absent);
}

void set_values(const at::Tensor& tensor, const at::Tensor& values) {
  at::Tensor same = tensor;
  same.set_data(values.detach());
}

}  // namespace accelerate::offload

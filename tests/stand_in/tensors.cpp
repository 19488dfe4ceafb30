// SPDX-License-Identifier: Apache-2.0
// Creates tensors and views. Only the copy of a growing storage is a job.
#include "tests/stand_in/tensors.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device with_index(std::optional<c10::Device> device) {
  return {kType, device && device->has_index() ? device->index() : current_device()};
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "only CPU tensors can be pinned");
  const c10::DeviceGuard guard(with_index(device));
  return at::detail::empty_generic(sizes, &device_memory(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  return make(sizes, strides, c10::dtype_or_default(dtype), with_index(device).index());
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* const impl = self.unsafeGetTensorImpl();
  const auto bytes = at::detail::computeStorageNbytesContiguous(sizes, self.element_size(),
                                                                static_cast<size_t>(self.storage_offset()));
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  impl->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Contiguous) impl->empty_tensor_restride(*format);
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_memory().recordStream(self.storage().data_ptr(), stream);
}

/// LibTorch's list of devices with interchangeable tensors (Module::to) lacks this one.
bool always_compatible(const at::Tensor&, const at::Tensor&) { return true; }

}  // namespace

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

at::Tensor as_cpu(const at::Tensor& tensor) {
  auto block = block_of(tensor.storage().data_ptr());
  const auto options = tensor.options().device(c10::kCPU);
  if (block == nullptr) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  const auto* const address = static_cast<const char*>(tensor.const_data_ptr());  // null for an empty tensor
  auto* const data = address == nullptr ? block->memory : block->memory + (address - block->address);
  return at::for_blob(data, tensor.sizes())
      .strides(tensor.strides())
      .deleter([block](void*) {})
      .options(options)
      .make_tensor();
}

void touch(std::vector<Touch>& touches, const at::Tensor& tensor, bool write) {
  auto block = block_of(tensor.storage().data_ptr());
  if (block == nullptr || tensor.numel() == 0) return;
  const auto* const low = static_cast<const char*>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  touches.push_back({std::move(block), low, low + (last + 1) * static_cast<int64_t>(tensor.element_size()), write});
}

at::Tensor make(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::DeviceIndex device) {
  const c10::DeviceGuard guard(c10::Device(kType, device));
  return at::detail::empty_strided_generic(sizes, strides, &device_memory(), kKeys, dtype);
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  auto fresh = device_memory().allocate(bytes);
  if (const auto kept = std::min(bytes, storage.nbytes()); kept > 0) {
    const auto from = block_of(storage.data_ptr());
    const auto to = block_of(fresh);
    launch(current_stream(storage.device().index()), "resize_",
           {{from, from->address, from->address + kept, false}, {to, to->address, to->address + kept, true}},
           [from, to, kept] { std::memcpy(to->memory, from->memory, kept); });
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("record_stream", &record_stream);
  library.impl("_has_compatible_shallow_copy_type", &always_compatible);
}

}  // namespace stand_in

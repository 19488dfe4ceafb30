// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/absent_memory.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <tuple>

namespace accelerate::device {
namespace {

// key_set_ is protected: a derived class may form the pointer to the member.
struct KeySetOfTensor : c10::TensorImpl {
  static c10::DispatchKeySet c10::TensorImpl::*member() { return &KeySetOfTensor::key_set_; }
};

// StorageImpl can refuse data(), but public functions only set that flag and never clear it. Access checks do not apply
// to the arguments of an explicit instantiation.
template <typename Tag, typename Tag::type Member>
struct PrivateMember {
  friend typename Tag::type member_of(Tag) { return Member; }
};
struct RefusesData {
  using type = bool c10::StorageImpl::*;
  friend type member_of(RefusesData);
};
template struct PrivateMember<RefusesData, &c10::StorageImpl::throw_on_immutable_data_ptr_>;
// mutable_data() reads the flag above only if this one is set, which set_data_ptr() computes.
struct ChecksMutableData {
  using type = bool c10::StorageImpl::*;
  friend type member_of(ChecksMutableData);
};
template struct PrivateMember<ChecksMutableData, &c10::StorageImpl::has_mutable_data_ptr_check_>;

struct NoAllocator final : c10::Allocator {
  explicit NoAllocator(c10::Device the_device) : device(the_device) {}
  c10::DataPtr allocate(size_t) override { return {nullptr, device}; }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
  c10::Device device;
};

}  // namespace

at::Tensor empty_without_memory(at::IntArrayRef sizes, at::OptionalIntArrayRef strides, c10::ScalarType dtype,
                                c10::Device device, std::optional<c10::MemoryFormat> memory_format) {
  NoAllocator allocator(device);
  const c10::DispatchKeySet keys(c10::computeDispatchKey(dtype, c10::kStrided, device));
  if (strides) return at::Tensor(at::detail::empty_strided_generic(sizes, *strides, &allocator, keys, dtype));
  return at::Tensor(at::detail::empty_generic(sizes, &allocator, keys, dtype, memory_format));
}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

c10::DispatchKeySet& dispatch_keys_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->*KeySetOfTensor::member();
}

void refuse_data(c10::StorageImpl& storage, bool refused) {
  storage.*member_of(RefusesData()) = refused;
  if (refused) storage.*member_of(ChecksMutableData()) = true;
}

void require_data(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || !(storage_of(tensor)->*member_of(RefusesData()))) return;
  const at::NoGradGuard no_grad;
  std::ignore = tensor.as_strided({0}, {1}).clone();
}

bool needs_values(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  static constexpr std::string_view kQueries[] = {"aten::size",
                                                  "aten::stride",
                                                  "aten::sym_size",
                                                  "aten::sym_stride",
                                                  "aten::sym_numel",
                                                  "aten::numel",
                                                  "aten::dim",
                                                  "aten::storage_offset",
                                                  "aten::is_same_size",
                                                  "aten::requires_grad_",
                                                  "aten::_version",
                                                  "aten::is_leaf",
                                                  "aten::output_nr",
                                                  "aten::retain_grad",
                                                  "aten::cudnn_is_acceptable",
                                                  "aten::_has_compatible_shallow_copy_type"};
  if (name.ends_with("_like")) return false;
  for (const std::string_view query : kQueries) {
    if (name == query) return false;
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return false;
  }
  return true;
}

bool is_view(const c10::FunctionSchema& schema) {
  static constexpr std::string_view kViews[] = {"aten::t",      "aten::transpose", "aten::permute", "aten::view",
                                                "aten::expand", "aten::narrow",    "aten::select",  "aten::slice"};
  if (schema.name() == "aten::narrow" && schema.overload_name() == "Tensor") return false;  // it reads its `start`
  return std::ranges::find(kViews, std::string_view(schema.name())) != std::end(kViews);
}

}  // namespace accelerate::device

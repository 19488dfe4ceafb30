// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/tensors.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>

#include "accelerate/base/error.hpp"
#include "accelerate/device/absent_memory.hpp"

namespace accelerate::checkpoint {
namespace {

constexpr std::array<DtypeNames, 17> kDtypeNames{{
    {c10::ScalarType::Double, "F64", "DoubleStorage"},
    {c10::ScalarType::Float, "F32", "FloatStorage"},
    {c10::ScalarType::Half, "F16", "HalfStorage"},
    {c10::ScalarType::BFloat16, "BF16", "BFloat16Storage"},
    {c10::ScalarType::Long, "I64", "LongStorage"},
    {c10::ScalarType::Int, "I32", "IntStorage"},
    {c10::ScalarType::Short, "I16", "ShortStorage"},
    {c10::ScalarType::Char, "I8", "CharStorage"},
    {c10::ScalarType::Byte, "U8", "ByteStorage"},
    {c10::ScalarType::Bool, "BOOL", "BoolStorage"},
    {c10::ScalarType::ComplexFloat, "C64", "ComplexFloatStorage"},
    {c10::ScalarType::ComplexDouble, "C128", "ComplexDoubleStorage"},  // not in safetensors
    {c10::ScalarType::Float8_e5m2, "F8_E5M2", ""},
    {c10::ScalarType::Float8_e4m3fn, "F8_E4M3", ""},
    {c10::ScalarType::UInt16, "U16", ""},
    {c10::ScalarType::UInt32, "U32", ""},
    {c10::ScalarType::UInt64, "U64", ""},
}};

template <typename Member, typename Key>
std::optional<DtypeNames> find_tensor(Member member, const Key& key) {
  const auto* found =
      std::find_if(kDtypeNames.begin(), kDtypeNames.end(), [&](const auto& row) { return row.*member == key; });
  return found == kDtypeNames.end() ? std::nullopt : std::optional(*found);
}

std::optional<c10::ScalarType> dtype_in(const std::optional<DtypeNames>& row) {
  return row ? std::optional(row->dtype) : std::nullopt;
}

}  // namespace

std::optional<DtypeNames> names_of(c10::ScalarType dtype) { return find_tensor(&DtypeNames::dtype, dtype); }

std::optional<c10::ScalarType> dtype_of_safetensors(std::string_view name) {
  return dtype_in(find_tensor(&DtypeNames::safetensors, name));
}

std::optional<c10::ScalarType> dtype_of_storage(std::string_view name) {
  return name.empty() ? std::nullopt : dtype_in(find_tensor(&DtypeNames::storage, name));
}

void check_can_be_written(const at::Tensor& tensor, std::string_view name, std::string_view operation) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.is_quantized()) {
    base::fail(ErrorKind::usage, {}, operation, "{} is {}, only dense tensors can be saved", name,
               !tensor.defined()       ? "an undefined tensor"
               : tensor.is_quantized() ? "quantised"
                                       : "sparse");
  }
}

at::Tensor as_written(const at::Tensor& tensor, std::string_view name, std::string_view operation) {
  check_can_be_written(tensor, name, operation);
  return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
}

std::string_view tensor_bytes(const at::Tensor& tensor) {
  device::require_data(tensor);
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

const void* data_address(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.numel() == 0) return nullptr;
  // Parameters that are copied to common memory when they are used have no memory that identifies them.
  const void* const begin = device::storage_of(tensor)->_mutable_data_ptr_no_checks().get();
  if (tensor.is_meta() || begin == nullptr) return tensor.unsafeGetTensorImpl();
  return static_cast<const char*>(begin) + tensor.storage_offset() * tensor.element_size();
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  const void* const memory = data_address(a);
  return memory != nullptr && memory == data_address(b) && a.device() == b.device() &&
         a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

std::string shape_of(const at::Tensor& tensor) { return fmt::format("[{}]", c10::Join(", ", tensor.sizes())); }

}  // namespace accelerate::checkpoint

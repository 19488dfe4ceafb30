// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/outputs.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <vector>

namespace accelerate::precision {
namespace {

c10::IValue tuple_to_output(const c10::ivalue::Tuple& tuple, c10::ScalarType dtype) {
  std::vector<c10::IValue> elements;
  for (const c10::IValue& element : tuple.elements()) elements.push_back(to_output(element, dtype));
  const auto type = tuple.type();
  return type->name() ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                      : c10::ivalue::Tuple::create(std::move(elements));
}

}  // namespace

at::Tensor to_output(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (!tensor.defined()) return tensor;
  const auto now = tensor.scalar_type();
  return now == c10::ScalarType::Half || now == c10::ScalarType::BFloat16 ? tensor.to(dtype) : tensor;
}

c10::IValue to_output(const c10::IValue& value, c10::ScalarType dtype) {
  if (value.isTensor()) return to_output(value.toTensor(), dtype);
  if (value.isTuple()) return tuple_to_output(value.toTupleRef(), dtype);
  if (value.isList()) {
    const auto list = value.toList();
    auto changed = list.copy();
    for (size_t i = 0; i < list.size(); ++i) changed.set(i, to_output(list.get(i), dtype));
    return changed;
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    auto changed = dict.copy();
    for (const auto& entry : dict) changed.insert_or_assign(entry.key(), to_output(entry.value(), dtype));
    return changed;
  }
  return value;
}

}  // namespace accelerate::precision

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/units/argument_devices.hpp"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <utility>

namespace accelerate::units {
namespace {

bool is_number(const at::Tensor& tensor) { return tensor.dim() == 0 && tensor.is_cpu(); }

at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  const bool stays = !tensor.defined() || tensor.device() == device || is_number(tensor);
  return stays ? tensor : tensor.to(device);
}

}  // namespace

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

std::optional<c10::Device> device_for_mixed(std::span<const c10::IValue> arguments,
                                            std::optional<c10::Device> preferred) {
  std::optional<c10::Device> first;
  bool is_mixed = false, has_preferred = false;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (is_number(tensor)) return;
      if (!first) first = tensor.device();
      is_mixed = is_mixed || tensor.device() != *first;
      has_preferred = has_preferred || tensor.device() == preferred;
    });
  }
  if (!is_mixed) return std::nullopt;
  return has_preferred ? preferred : first;
}

void copy_to_device(c10::IValue& argument, c10::Device device) {
  if (argument.isTensor()) {
    argument = moved(argument.toTensor(), device);
  } else if (argument.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(moved(tensor, device));
    argument = std::move(list);
  } else if (argument.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : argument.toListRef()) {
      list.push_back(element.isTensor() ? std::optional(moved(element.toTensor(), device)) : std::nullopt);
    }
    argument = std::move(list);
  }
}

}  // namespace accelerate::units

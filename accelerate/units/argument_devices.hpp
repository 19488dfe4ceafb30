// SPDX-License-Identifier: Apache-2.0
// Private: arguments of operators that are on several devices.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <span>

namespace accelerate::units {

/// Calls `visit` with each defined tensor of a value: the value itself, or the elements of a list.
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

/// Returns the device on which an operator with these arguments runs, if they are on several devices and its result has
/// no other device. A CPU tensor without dimensions counts as a number.
/// \param preferred  Returned if one of the arguments is there; otherwise the device of the first one is returned.
[[nodiscard]] std::optional<c10::Device> device_for_mixed(std::span<const c10::IValue> arguments,
                                                          std::optional<c10::Device> preferred);

/// Replaces the tensors of one argument that are on other devices by copies, which autograd records.
void copy_to_device(c10::IValue& argument, c10::Device device);

}  // namespace accelerate::units

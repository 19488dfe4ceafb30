// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/tensor_checks.hpp"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/units/gather_on_use.hpp"

namespace accelerate::offload {

void check_without_owner(const NamedTensors& tensors, std::string_view operation) {
  for (const auto& [name, tensor] : tensors) {
    if (!units::has_memory_owner(tensor)) continue;
    base::fail(ErrorKind::usage, {}, operation, "tensor {} is sharded, offloaded or dispatched already", name);
  }
}

c10::Device parse_device(const std::string& text) {
  const auto type = at::getAccelerator(/*checked=*/false);
  const int count = type ? at::accelerator::deviceCount() : 0;
  const bool is_index =
      !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  std::optional<c10::Device> device;
  try {
    if (!is_index) device = c10::Device(text);
  } catch (const c10::Error&) {
    base::fail(
        ErrorKind::usage, {}, "device_map",
        "\"{}\" is not a device; expected the number of an accelerator device, a device as \"cuda:1\", \"cpu\" or "
        "\"disk\"",
        text);
  }
  if (device && device->is_cpu()) return c10::kCPU;
  const bool is_accelerator = type && (!device || device->type() == *type);
  const int index = is_index ? (text.size() < 4 ? std::stoi(text) : count) : std::max<int>(device->index(), 0);
  if (!is_accelerator || index >= count) {
    base::fail(ErrorKind::usage, {}, "device_map", "device {} does not exist; this process has {} accelerator devices",
               text, count);
  }
  return {*type, static_cast<c10::DeviceIndex>(index)};
}

c10::Device with_index(c10::Device device) {
  if (device.is_cpu()) return c10::kCPU;
  return device.has_index() ? device : c10::Device(device.type(), at::accelerator::getDeviceIndex());
}

}  // namespace accelerate::offload

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/device_selection.hpp"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::device {
namespace {

std::string device_type_name(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

/// "2 GPUs", "1 xpu device"
std::string counted(const AcceleratorType& accelerator) {
  const std::string kind =
      accelerator.type == c10::DeviceType::CUDA ? "GPU" : device_type_name(accelerator.type) + " device";
  return fmt::format("{} {}{}", accelerator.count, kind, accelerator.count == 1 ? "" : "s");
}

/// \param by  Source of the request, in parentheses.
void check_device_exists(const env::DeviceName& requested, const AcceleratorType& accelerator, const RankContext& place,
                         std::string_view operation, std::string_view by) {
  const std::string known = device_type_name(accelerator.type);
  const bool of_that_type = requested.type == known;
  if (of_that_type && requested.index.value_or(0) < accelerator.count) return;
  std::string instead = "cpu";
  if (accelerator.count > 0) {
    instead = of_that_type ? fmt::format("at most {}:{} or cpu", known, accelerator.count - 1)
                           : fmt::format("{} or cpu", known);
  }
  base::fail(ErrorKind::device, place, operation, "{} is requested{}, {} {} visible; request {}{}", requested.str(), by,
             counted(accelerator), accelerator.count == 1 ? "is" : "are", instead,
             accelerator.type == c10::DeviceType::CUDA ? ", or look at nvidia-smi and CUDA_VISIBLE_DEVICES" : "");
}

}  // namespace

AcceleratorType accelerator() noexcept {
  const auto type = at::accelerator::getAccelerator();
  if (!type || !c10::impl::hasDeviceGuardImpl(*type)) return {};
  return {.type = *type, .count = c10::impl::VirtualGuardImpl(*type).deviceCount()};
}

c10::Device select_device(const env::ProcessEnv& process, const env::Settings& settings,
                          const AcceleratorType& accelerator, const RankContext& place) {
  const auto& requested = settings.device;
  const int64_t count = accelerator.count;
  if (requested && requested->is_cpu()) return c10::kCPU;
  if (requested) {
    check_device_exists(*requested, accelerator, place, "device",
                        " (device in the code, ACCELERATE_TORCH_DEVICE or torch_device in the config file)");
  }
  if (requested && requested->index) return {accelerator.type, static_cast<c10::DeviceIndex>(*requested->index)};
  if (!requested && (settings.cpu || count == 0)) return c10::kCPU;
  if (process.local_world_size > count && !settings.allow_shared_gpus) {
    base::fail(ErrorKind::device, place, "device",
               "{} ranks on this machine, {} visible; start at most {}, run on the CPU (ACCELERATE_USE_CPU=1), or "
               "set ACCELERATE_ALLOW_SHARED_GPUS=1, which is also correct if each rank sees only its own GPU",
               process.local_world_size, counted(accelerator), count);
  }
  return {accelerator.type, static_cast<c10::DeviceIndex>(process.local_rank % count)};
}

void check_visible(c10::Device device, const AcceleratorType& accelerator, std::string_view operation,
                   const RankContext& place) {
  if (device.is_cpu() || device.is_meta()) return;
  env::DeviceName requested{.type = device_type_name(device.type())};
  if (device.has_index()) requested.index = device.index();
  check_device_exists(requested, accelerator, place, operation, "");
}

void set_current_device(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

}  // namespace accelerate::device

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/devices.hpp"

#include <ATen/DeviceAccelerator.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "accelerate/base/bytes_text.hpp"

namespace accelerate::profile {
namespace {

// Declarations from docs.nvidia.com/deploy/nvml-api, because nvml.h is missing on machines without the toolkit.
using NvmlDevice = struct nvmlDevice_st*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned int gpu, memory;
};
constexpr int kNvmlSuccess = 0;
constexpr unsigned int kNvmlTemperatureGpu = 0;

/// Loads NVIDIA's management library for the lifetime of the object.
class Nvml {
 public:
  explicit Nvml(const std::string& library) : handle_(::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    begun_ = handle_ != nullptr && call("nvmlInit_v2");
  }
  ~Nvml() {
    if (begun_) call("nvmlShutdown");
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] bool begun() const { return begun_; }

  /// Returns false if the function does not exist or fails.
  template <typename... Args>
  bool call(const char* name, Args... arguments) const {
    void* found = ::dlsym(handle_, name);
    return found != nullptr && reinterpret_cast<int (*)(Args...)>(found)(arguments...) == kNvmlSuccess;
  }

  [[nodiscard]] std::string text(const char* name, NvmlDevice device) const {
    std::array<char, 96> buffer{};  // NVML_DEVICE_NAME_V2_BUFFER_SIZE; UUIDs are not longer
    return call(name, device, buffer.data(), static_cast<unsigned int>(buffer.size() - 1)) ? buffer.data() : "";
  }

 private:
  void* handle_;
  bool begun_ = false;
};

DeviceFacts facts_by_nvml(const Nvml& nvml, unsigned int index) {
  DeviceFacts facts{.index = index};
  NvmlDevice device = nullptr;
  if (!nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device)) return facts;
  facts.name = nvml.text("nvmlDeviceGetName", device);
  facts.uuid = nvml.text("nvmlDeviceGetUUID", device);
  NvmlMemory memory{};
  if (nvml.call("nvmlDeviceGetMemoryInfo", device, &memory)) {
    facts.total_bytes = static_cast<int64_t>(memory.total);
    facts.used_bytes = static_cast<int64_t>(memory.used);
  }
  NvmlUtilization utilization{};
  if (nvml.call("nvmlDeviceGetUtilizationRates", device, &utilization)) facts.utilization = utilization.gpu;
  unsigned int degrees = 0;
  if (nvml.call("nvmlDeviceGetTemperature", device, kNvmlTemperatureGpu, &degrees)) facts.temperature = degrees;
  return facts;
}

std::vector<DeviceFacts> devices_of_libtorch() {
  std::vector<DeviceFacts> all;
  const auto type = at::accelerator::getAccelerator(false);
  const c10::DeviceIndex count = type ? at::accelerator::deviceCount() : c10::DeviceIndex{0};
  for (c10::DeviceIndex index = 0; index < count; ++index) {
    DeviceFacts facts{.index = index, .name = c10::Device(*type, index).str()};
    try {
      const auto [free, total] = at::accelerator::getMemoryInfo(index);
      facts.total_bytes = static_cast<int64_t>(total);
      facts.used_bytes = static_cast<int64_t>(total - free);
    } catch (const std::exception&) {  // not every accelerator reports this
    }
    all.push_back(std::move(facts));
  }
  return all;
}

}  // namespace

std::optional<std::vector<DeviceFacts>> devices_by_nvml(const std::string& library) {
  const Nvml nvml(library);
  unsigned int count = 0;
  if (!nvml.begun() || !nvml.call("nvmlDeviceGetCount_v2", &count)) return std::nullopt;
  std::vector<DeviceFacts> all;
  for (unsigned int index = 0; index < count; ++index) all.push_back(facts_by_nvml(nvml, index));
  return all;
}

std::vector<DeviceFacts> devices() {
  auto by_nvml = devices_by_nvml("libnvidia-ml.so.1");
  return by_nvml ? *std::move(by_nvml) : devices_of_libtorch();
}

std::string device_table(const std::vector<DeviceFacts>& devices) {
  if (devices.empty()) return "no GPU\n";
  std::string table = fmt::format("{:>3}  {:<32}  {:>21}  {:>5}  {:>5}\n", "GPU", "name", "memory", "use", "temp");
  for (const auto& device : devices) {
    const auto number = [](const std::optional<int64_t>& value, const char* unit) {
      return value ? fmt::format("{}{}", *value, unit) : std::string("-");
    };
    table += fmt::format("{:>3}  {:<32}  {:>21}  {:>5}  {:>5}\n", device.index, device.name,
                         base::bytes_text(device.used_bytes) + " / " + base::bytes_text(device.total_bytes),
                         number(device.utilization, "%"), number(device.temperature, "C"));
  }
  return table;
}

}  // namespace accelerate::profile

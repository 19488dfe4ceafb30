// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/offload.hpp"

#include <torch/nn/module.h>

#include <optional>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "accelerate/deferred/init_empty_weights.hpp"
#include "accelerate/offload/absent_tensor.hpp"
#include "accelerate/offload/module_items.hpp"
#include "accelerate/offload/offloaded_units.hpp"
#include "accelerate/offload/resident_tensor.hpp"
#include "accelerate/offload/saved_values.hpp"
#include "accelerate/offload/tensor_checks.hpp"

namespace accelerate {
namespace {

using offload::NamedTensors;
using offload::OffloadedParameter;

c10::Device execution_device_of(const NamedTensors& parameters, const OffloadOptions& options) {
  if (options.execution_device) return offload::with_index(*options.execution_device);
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().second.device();
}

void offload_to(torch::nn::Module& module, std::vector<OffloadedParameter> parameters, c10::Device device,
                const OffloadOptions& options) {
  for (const auto& [name, buffer] : offload::distinct_buffers(module)) {
    if (device.is_cpu()) {
      offload::move_to_device(buffer, device);
    } else {
      offload::keep_on_device(name, buffer, device);
    }
  }
  offload::OffloadedUnits::create(std::move(parameters), device, options.units, options.prefetch);
}

}  // namespace

void cpu_offload(torch::nn::Module& module, const OffloadOptions& options) {
  const NamedTensors parameters = offload::distinct_parameters(module);
  offload::check_without_owner(parameters, "cpu_offload");
  const c10::Device device = execution_device_of(parameters, options);
  if (device.is_cpu()) {
    base::fail(ErrorKind::usage, {}, "cpu_offload",
               "the execution device is the CPU, where the parameters are already; set execution_device, or use "
               "disk_offload()");
  }
  materialize(module);
  std::vector<OffloadedParameter> offloaded;
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor values = parameter.detach().cpu().contiguous();
    offloaded.push_back({.name = name, .parameter = parameter, .source = {.tensor = values}});
  }
  offload_to(module, std::move(offloaded), device, options);
}

void disk_offload(torch::nn::Module& module, const std::filesystem::path& offload_dir, const OffloadOptions& options) {
  const NamedTensors parameters = offload::distinct_parameters(module);
  offload::check_without_owner(parameters, "disk_offload");
  std::filesystem::path path = offload_dir;
  const bool has_weights = offload::has_safetensors(path);
  if (!has_weights) {
    materialize(module);
    path /= "model.safetensors";
    checkpoint::save_file(path, parameters, "disk_offload");
  }
  const offload::SavedValues saved(path, "disk_offload");
  const auto names = offload::names_of_tensors(module);
  std::vector<OffloadedParameter> offloaded;
  for (const auto& [name, parameter] : parameters) {
    offloaded.push_back({.name = name, .parameter = parameter, .source = saved.require(names.at(name), parameter)});
  }
  for (const auto& [name, buffer] : offload::distinct_buffers(module)) {
    const auto source = has_weights ? saved.find(names.at(name), buffer) : std::nullopt;
    if (source) offload::set_values(buffer, offload::read_source(*source, buffer));
  }
  offload_to(module, std::move(offloaded), execution_device_of(parameters, options), options);
}

}  // namespace accelerate

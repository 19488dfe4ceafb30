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
using offload::TensorItem;

c10::Device execution_device_of(const torch::nn::Module& module, const OffloadOptions& options) {
  if (options.execution_device) return offload::with_index(*options.execution_device);
  const NamedTensors parameters = offload::distinct_parameters(module);
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().second.device();
}

std::vector<TensorItem> offloaded_tensors(const torch::nn::Module& module, const OffloadOptions& options) {
  auto items = offload::tensors_by_module(module);
  if (!options.offload_buffers) std::erase_if(items, [](const TensorItem& item) { return item.is_buffer; });
  return items;
}

NamedTensors named(const std::vector<TensorItem>& items) {
  NamedTensors tensors;
  for (const TensorItem& item : items) tensors.emplace_back(item.name, item.tensor);
  return tensors;
}

void offload_to(torch::nn::Module& module, std::vector<OffloadedParameter> parameters, c10::Device device,
                const OffloadOptions& options, const units::UnitOptions& units) {
  const NamedTensors resident = options.offload_buffers ? NamedTensors{} : offload::distinct_buffers(module);
  for (const auto& [name, buffer] : resident) {
    if (device.is_cpu()) {
      offload::move_to_device(buffer, device);
    } else {
      offload::keep_on_device(name, buffer, device);
    }
  }
  offload::OffloadedUnits::create(std::move(parameters), device, units, options.prefetch);
}

}  // namespace

void cpu_offload(torch::nn::Module& module, const OffloadOptions& options) {
  const auto items = offloaded_tensors(module, options);
  offload::check_without_owner(named(items), "cpu_offload");
  const auto units = offload::without_classes(module, options.units, "cpu_offload");
  const c10::Device device = execution_device_of(module, options);
  if (device.is_cpu()) {
    base::fail(ErrorKind::usage, {}, "cpu_offload",
               "the execution device is the CPU, where the parameters are already; set execution_device, or use "
               "disk_offload()");
  }
  materialize(module);
  std::vector<OffloadedParameter> offloaded;
  for (const auto& [name, tensor, is_buffer] : items) {
    offloaded.push_back({name, tensor, offload::values_on_cpu(tensor), is_buffer});
  }
  offload_to(module, std::move(offloaded), device, options, units);
}

void disk_offload(torch::nn::Module& module, const std::filesystem::path& offload_dir, const OffloadOptions& options) {
  const auto items = offloaded_tensors(module, options);
  offload::check_without_owner(named(items), "disk_offload");
  const auto units = offload::without_classes(module, options.units, "disk_offload");
  std::filesystem::path path = offload_dir;
  const bool has_weights = offload::has_safetensors(path);
  if (!has_weights) {
    materialize(module);
    path /= "model.safetensors";
    checkpoint::save_file(path, named(items), "disk_offload");
  }
  const offload::SavedValues saved(path, "disk_offload");
  const auto names = offload::names_of_tensors(module);
  std::vector<OffloadedParameter> offloaded;
  for (const TensorItem& item : items) {
    auto source = saved.source_of(item, names);
    if (!source) source = offload::values_on_cpu(item.tensor);
    offloaded.push_back({item.name, item.tensor, *std::move(source), item.is_buffer});
  }
  for (const auto& [name, buffer] : offload::distinct_buffers(module)) {
    const bool is_read = has_weights && !options.offload_buffers;
    const auto source = is_read ? saved.source_of({name, buffer, /*is_buffer=*/true}, names) : std::nullopt;
    if (source) offload::set_values(buffer, offload::read_source(*source, buffer.sizes(), buffer.scalar_type()));
  }
  offload_to(module, std::move(offloaded), execution_device_of(module, options), options, units);
}

}  // namespace accelerate

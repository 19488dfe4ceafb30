// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "accelerate/deferred/deferred_tensor.hpp"
#include "accelerate/deferred/init_empty_weights.hpp"
#include "accelerate/offload/absent_tensor.hpp"
#include "accelerate/offload/dispatch_model.hpp"
#include "accelerate/offload/module_items.hpp"
#include "accelerate/offload/offloaded_units.hpp"
#include "accelerate/offload/resident_tensor.hpp"
#include "accelerate/offload/saved_values.hpp"
#include "accelerate/offload/tensor_checks.hpp"

namespace accelerate {
namespace {

using offload::NamedTensors;
using offload::OffloadedParameter;
using offload::WeightSource;

struct Places {
  std::map<std::string, c10::Device> devices{};  // by the texts of the map, without "disk"
  c10::Device main = c10::kCPU;
  bool has_disk = false;

  /// True if operators need no copies of their arguments.
  [[nodiscard]] bool has_one_device() const {
    return (main.is_cpu() || !has_disk) &&
           std::ranges::all_of(devices, [&](const auto& place) { return place.second == main; });
  }
};

Places find_places(const DeviceMap& device_map, const DispatchOptions& options) {
  Places places;
  std::optional<c10::Device> accelerator;
  for (const auto& [name, text] : device_map) {
    if (text == "disk") {
      places.has_disk = true;
      continue;
    }
    const c10::Device device = offload::parse_device(text);
    places.devices.emplace(text, device);
    if (device.is_cpu()) continue;
    if (!accelerator || device.index() < accelerator->index()) accelerator = device;
  }
  places.main = offload::with_index(options.main_device.value_or(accelerator.value_or(c10::Device(c10::kCPU))));
  if (places.main.is_cpu() && accelerator) {
    base::fail(
        ErrorKind::usage, {}, "dispatch_model",
        "main_device is the CPU, but the device map has {}; leave main_device unset, or set it to an accelerator",
        accelerator->str());
  }
  return places;
}

std::vector<std::string> disk_modules(const DeviceMap& device_map) {
  std::vector<std::string> names;
  for (const auto& [name, device] : device_map) {
    if (device == "disk") names.push_back(name.empty() ? "the whole model" : name);
  }
  return names;
}

/// Moves the tensors of one model.
class Dispatcher {
 public:
  Dispatcher(torch::nn::Module& module, const DeviceMap& device_map, const DispatchOptions& options)
      : module_(module), map_(device_map), options_(options), places_(find_places(device_map, options)) {}

  /// \param disk_source  Returns the source of a parameter on the disk.
  void run(const std::function<WeightSource(const std::string&, const at::Tensor&)>& disk_source) {
    std::vector<OffloadedParameter> offloaded;
    for (const auto& [name, parameter] : offload::distinct_parameters(module_)) {
      const std::string& place = *offload::device_of(name, map_);
      if (place == "disk") {
        offloaded.push_back({.name = name, .parameter = parameter, .source = disk_source(name, parameter)});
      } else if (const auto device = places_.devices.at(place); device.is_cpu() && !places_.main.is_cpu()) {
        deferred::materialize_tensor(parameter);
        const at::Tensor values = parameter.detach().cpu().contiguous();
        offloaded.push_back({.name = name, .parameter = parameter, .source = {.tensor = values}});
      } else {
        place_on(name, parameter, device);
      }
    }
    for (const auto& [name, buffer] : offload::distinct_buffers(module_)) {
      const std::string& place = *offload::device_of(name, map_);
      const bool is_offloaded = place == "disk" || places_.devices.at(place).is_cpu();
      place_on(name, buffer, is_offloaded ? places_.main : places_.devices.at(place));
    }
    offload::OffloadedUnits::create(std::move(offloaded), places_.main, options_.units, options_.prefetch);
  }

 private:
  void place_on(const std::string& name, const at::Tensor& tensor, c10::Device device) const {
    if (places_.has_one_device()) {
      offload::move_to_device(tensor, device);
    } else {
      offload::keep_on_device(name, tensor, device);
    }
  }

  torch::nn::Module& module_;
  const DeviceMap& map_;
  const DispatchOptions& options_;
  Places places_;
};

[[noreturn]] void fail_without_folder(const DeviceMap& device_map, std::string_view operation) {
  base::fail(ErrorKind::usage, {}, operation, "the device map has \"disk\" for {}; set offload_dir",
             fmt::join(disk_modules(device_map), ", "));
}

void check_dispatch(const torch::nn::Module& module, const DeviceMap& device_map, std::string_view operation) {
  check_device_map(module, device_map);
  offload::check_without_owner(offload::distinct_tensors(module), operation);
}

// Loads the tensors that are not read from the disk later.
void load_values(torch::nn::Module& module, const DeviceMap& device_map, const offload::SavedValues& saved,
                 const std::map<std::string, std::vector<std::string>>& names) {
  const auto load = [&](const at::Tensor& tensor, const WeightSource& source) {
    offload::set_values(tensor, offload::read_source(source, tensor));
  };
  for (const auto& [name, parameter] : offload::distinct_parameters(module)) {
    const WeightSource source = saved.require(names.at(name), parameter);
    if (*offload::device_of(name, device_map) != "disk") load(parameter, source);
  }
  for (const auto& [name, buffer] : offload::distinct_buffers(module)) {
    if (const auto source = saved.find(names.at(name), buffer)) load(buffer, *source);
  }
}

// Sizes are counted in the dtypes of the options, but nothing is converted, so limits would be exceeded.
void check_dtypes(const torch::nn::Module& module, const DeviceMapOptions& map) {
  for (const auto& [name, tensor] : offload::distinct_tensors(module)) {
    const c10::ScalarType own = tensor.scalar_type();
    const auto special = map.special_dtypes.find(name);
    const auto other = c10::isIntegralType(own, /*includeBool=*/true) ? own : map.dtype.value_or(own);
    const c10::ScalarType counted = special != map.special_dtypes.end() ? special->second : other;
    if (counted == own) continue;
    base::fail(ErrorKind::usage, {}, "load_checkpoint_and_dispatch",
               "the dtype of {} is {} in the options of the device map and {} in the model, and weights are not "
               "converted; leave it unset, or build the model with the dtype and load a checkpoint that has it",
               name, c10::toString(counted), c10::toString(own));
  }
}

void report_unexpected(const offload::SavedValues& saved, const std::map<std::string, std::vector<std::string>>& names,
                       bool strict) {
  std::set<std::string> known;
  for (const auto& [first, all] : names) known.insert(all.begin(), all.end());
  std::vector<std::string> unexpected = saved.names();
  std::erase_if(unexpected, [&](const std::string& name) { return known.contains(name); });
  if (unexpected.empty()) return;
  const auto text = fmt::format("the checkpoint has {} tensors that the model lacks: {}", unexpected.size(),
                                fmt::join(unexpected, ", "));
  if (strict) base::fail(ErrorKind::data, {}, "load_checkpoint_and_dispatch", "{}", text);
  base::log(base::LogLevel::warning, {}, "load_checkpoint_and_dispatch: {}", text);
}

}  // namespace

void dispatch_model(torch::nn::Module& module, const DeviceMap& device_map, const DispatchOptions& options) {
  check_dispatch(module, device_map, "dispatch_model");
  Dispatcher dispatcher(module, device_map, options);
  const auto is_on_disk = [&](const auto& tensor) { return *offload::device_of(tensor.first, device_map) == "disk"; };
  NamedTensors on_disk = offload::distinct_parameters(module);
  std::erase_if(on_disk, [&](const auto& tensor) { return !is_on_disk(tensor); });
  if (on_disk.empty()) return dispatcher.run({});
  if (options.offload_dir.empty()) fail_without_folder(device_map, "dispatch_model");
  if (!offload::has_safetensors(options.offload_dir)) {
    materialize(module);
    checkpoint::save_file(options.offload_dir / "model.safetensors", on_disk, "dispatch_model");
  }
  const offload::SavedValues saved(options.offload_dir, "dispatch_model");
  const auto names = offload::names_of_tensors(module);
  for (const auto& [name, parameter] : on_disk) (void)saved.require(names.at(name), parameter);
  dispatcher.run(
      [&](const std::string& name, const at::Tensor& tensor) { return saved.require(names.at(name), tensor); });
}

void load_checkpoint_and_dispatch(torch::nn::Module& module, const std::filesystem::path& checkpoint,
                                  const DeviceMap& device_map, const LoadDispatchOptions& options) {
  constexpr std::string_view operation = "load_checkpoint_and_dispatch";
  check_dispatch(module, device_map, operation);
  Dispatcher dispatcher(module, device_map, options.dispatch);
  offload::SavedValues saved(checkpoint, operation);
  const auto names = offload::names_of_tensors(module);
  report_unexpected(saved, names, options.strict);
  if (!disk_modules(device_map).empty() && !offload::has_safetensors(checkpoint)) {
    if (options.dispatch.offload_dir.empty()) fail_without_folder(device_map, operation);
    saved.ensure_files(options.dispatch.offload_dir);
  }
  load_values(module, device_map, saved, names);
  dispatcher.run(
      [&](const std::string& name, const at::Tensor& tensor) { return saved.require(names.at(name), tensor); });
}

DeviceMap load_checkpoint_and_dispatch(torch::nn::Module& module, const std::filesystem::path& checkpoint,
                                       DeviceMapStrategy strategy, const DeviceMapOptions& map,
                                       const LoadDispatchOptions& options) {
  check_dtypes(module, map);
  const auto limits = strategy == DeviceMapStrategy::sequential
                          ? get_max_memory(map.max_memory)
                          : get_balanced_memory(module, map.max_memory, map.no_split_module_classes, map.dtype,
                                                map.special_dtypes, strategy == DeviceMapStrategy::balanced_low_0);
  DeviceMap device_map = infer_auto_device_map(module, limits, map);
  load_checkpoint_and_dispatch(module, checkpoint, device_map, options);
  return device_map;
}

}  // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/dispatch_model.hpp"

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
using offload::NamesOfTensors;
using offload::OffloadedParameter;
using offload::SavedValues;
using offload::TensorItem;
using offload::WeightSource;

constexpr std::string_view kLoad = "load_checkpoint_and_dispatch";

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

Places find_places(const DeviceMap& device_map, const DispatchOptions& options, std::string_view operation) {
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
        ErrorKind::usage, {}, operation,
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
  /// \param operation  Name of the user's call for errors.
  Dispatcher(torch::nn::Module& module, const DeviceMap& device_map, const DispatchOptions& options,
             std::string_view operation)
      : module_(module),
        map_(device_map),
        options_(options),
        places_(find_places(device_map, options, operation)),
        units_(offload::without_classes(module, options.units, operation)) {}

  /// \param disk_source  Returns the source of a tensor on the disk, unset for a buffer that the files lack.
  void run(const std::function<std::optional<WeightSource>(const TensorItem&)>& disk_source) {
    std::vector<OffloadedParameter> offloaded;
    for (const TensorItem& item : offload::tensors_by_module(module_)) {
      const std::string& place = *offload::device_of(item.name, map_);
      const bool is_on_disk = place == "disk";
      const auto device = is_on_disk ? places_.main : places_.devices.at(place);
      const bool is_elsewhere = is_on_disk || (device.is_cpu() && !places_.main.is_cpu());
      if (!is_elsewhere) {
        place_on(item.name, item.tensor, device);
      } else if (item.is_buffer && !options_.offload_buffers) {
        place_on(item.name, item.tensor, places_.main);
      } else {
        auto source = is_on_disk ? disk_source(item) : std::nullopt;
        if (!source) source = offload::values_on_cpu(item.tensor);
        offloaded.push_back({item.name, item.tensor, *std::move(source), item.is_buffer});
      }
    }
    offload::OffloadedUnits::create(std::move(offloaded), places_.main, units_, options_.prefetch);
  }

 private:
  void place_on(const std::string& name, const at::Tensor& tensor, c10::Device device) const {
    if (places_.has_one_device() && !options_.force_hooks) {
      offload::move_to_device(tensor, device);
    } else {
      offload::keep_on_device(name, tensor, device);
    }
  }

  torch::nn::Module& module_;
  const DeviceMap& map_;
  const DispatchOptions& options_;
  Places places_;
  units::UnitOptions units_;
};

[[noreturn]] void fail_without_folder(const DeviceMap& device_map, std::string_view operation) {
  base::fail(ErrorKind::usage, {}, operation, "the device map has \"disk\" for {}; set offload_dir",
             fmt::join(disk_modules(device_map), ", "));
}

void check_dispatch(const torch::nn::Module& module, const DeviceMap& device_map, std::string_view operation) {
  check_device_map(module, device_map);
  offload::check_without_owner(offload::distinct_tensors(module), operation);
}

/// A tensor, its source, and its dtype after the load.
struct LoadedTensor {
  TensorItem item{};
  std::optional<WeightSource> source{};  // unset for a buffer that the checkpoint lacks
  c10::ScalarType dtype = c10::ScalarType::Float;
};

c10::ScalarType dtype_after_load(const TensorItem& item, std::optional<c10::ScalarType> dtype,
                                 const SpecialDtypes& special_dtypes) {
  const c10::ScalarType own = item.tensor.scalar_type();
  const auto special = special_dtypes.find(item.name);
  if (special != special_dtypes.end()) return special->second;
  return c10::isFloatingType(own) ? dtype.value_or(own) : own;
}

void check_dtypes(const torch::nn::Module& module, const LoadDispatchOptions& options) {
  if (options.dtype && !c10::isFloatingType(*options.dtype)) {
    base::fail(ErrorKind::usage, {}, kLoad, "dtype is {}, must be a floating-point dtype",
               c10::toString(*options.dtype));
  }
  std::map<std::string, at::Tensor> tensors;
  for (const TensorItem& item : offload::tensors_by_module(module)) tensors.emplace(item.name, item.tensor);
  for (const auto& [name, dtype] : options.special_dtypes) {
    const auto tensor = tensors.find(name);
    if (tensor == tensors.end()) {
      base::fail(ErrorKind::usage, {}, kLoad,
                 "special_dtypes has {}, which the model lacks; use the first name of a parameter or buffer", name);
    }
    if (tensor->second.requires_grad() && !c10::isFloatingType(dtype) && !c10::isComplexType(dtype)) {
      base::fail(ErrorKind::usage, {}, kLoad,
                 "special_dtypes has {} for {}, which requires a gradient and must have a floating-point dtype",
                 c10::toString(dtype), name);
    }
  }
}

void check_gradient(const LoadedTensor& loaded) {
  const at::Tensor& tensor = loaded.item.tensor;
  if (loaded.dtype == tensor.scalar_type() || !tensor.is_leaf() || !tensor.grad().defined()) return;
  base::fail(ErrorKind::usage, {}, kLoad,
             "{} has a gradient, so its dtype cannot change from {} to {}; call zero_grad() before the load",
             loaded.item.name, c10::toString(tensor.scalar_type()), c10::toString(loaded.dtype));
}

// Compares the checkpoint with the model before anything is changed.
std::vector<LoadedTensor> find_values(const torch::nn::Module& module, const SavedValues& saved,
                                      const NamesOfTensors& names, const LoadDispatchOptions& options) {
  std::vector<LoadedTensor> tensors;
  std::vector<std::string> missing;
  for (TensorItem& item : offload::tensors_by_module(module)) {
    auto source = saved.source_of(item, names);
    if (!source) missing.push_back(item.name);
    const auto dtype =
        source ? dtype_after_load(item, options.dtype, options.special_dtypes) : item.tensor.scalar_type();
    tensors.push_back({std::move(item), std::move(source), dtype});
    check_gradient(tensors.back());
  }
  if (options.strict && !missing.empty()) {
    base::fail(ErrorKind::data, {}, kLoad, "the checkpoint lacks buffers of the model: {}", fmt::join(missing, ", "));
  }
  return tensors;
}

// Reads the tensors that are not read from the disk later, before those that are lose their memory. A read that fails
// thus leaves every tensor with values.
void load_values(const std::vector<LoadedTensor>& tensors, const DeviceMap& device_map, bool offload_buffers) {
  const auto stays_on_disk = [&](const TensorItem& item) {
    return *offload::device_of(item.name, device_map) == "disk" && (offload_buffers || !item.is_buffer);
  };
  for (const auto& [item, source, dtype] : tensors) {
    if (!source || stays_on_disk(item)) continue;
    offload::set_values(item.tensor, offload::read_source(*source, item.tensor.sizes(), dtype));
  }
  for (const auto& [item, source, dtype] : tensors) {
    if (!source || !stays_on_disk(item) || dtype == item.tensor.scalar_type()) continue;
    offload::take_memory(item.tensor, dtype);
  }
}

void report_unexpected(const SavedValues& saved, const NamesOfTensors& names, bool strict) {
  std::set<std::string> known;
  for (const auto& [first, all] : names) known.insert(all.begin(), all.end());
  std::vector<std::string> unexpected = saved.names();
  std::erase_if(unexpected, [&](const std::string& name) { return known.contains(name); });
  if (unexpected.empty()) return;
  const auto text = fmt::format("the checkpoint has {} tensors that the model lacks: {}", unexpected.size(),
                                fmt::join(unexpected, ", "));
  if (strict) base::fail(ErrorKind::data, {}, kLoad, "{}", text);
  base::log(base::LogLevel::warning, {}, "{}: {}", kLoad, text);
}

// Joins the dtypes and offload_buffers of both options.
LoadDispatchOptions joined(const DeviceMapOptions& map, const LoadDispatchOptions& options) {
  LoadDispatchOptions loading = options;
  if (options.dtype && map.dtype && *options.dtype != *map.dtype) {
    base::fail(ErrorKind::usage, {}, kLoad,
               "dtype is {} in the options of the device map and {} in those of the load; set one of them",
               c10::toString(*map.dtype), c10::toString(*options.dtype));
  }
  if (!loading.dtype) loading.dtype = map.dtype;
  for (const auto& [name, dtype] : map.special_dtypes) {
    const auto entry = loading.special_dtypes.emplace(name, dtype).first;
    if (entry->second == dtype) continue;
    base::fail(
        ErrorKind::usage, {}, kLoad,
        "special_dtypes has {} for {} in the options of the device map and {} in those of the load; set one of them",
        c10::toString(dtype), name, c10::toString(entry->second));
  }
  loading.dispatch.offload_buffers = loading.dispatch.offload_buffers || map.offload_buffers;
  return loading;
}

// Dtypes that are wider than those of the model count, too, which `dtype` alone does not cause.
SpecialDtypes widened(const torch::nn::Module& module, const LoadDispatchOptions& options) {
  SpecialDtypes dtypes = options.special_dtypes;
  for (const TensorItem& item : offload::tensors_by_module(module)) {
    const auto dtype = dtype_after_load(item, options.dtype, options.special_dtypes);
    if (static_cast<int64_t>(c10::elementSize(dtype)) > item.tensor.element_size()) dtypes.emplace(item.name, dtype);
  }
  return dtypes;
}

}  // namespace

void dispatch_model(torch::nn::Module& module, const DeviceMap& device_map, const DispatchOptions& options) {
  check_dispatch(module, device_map, "dispatch_model");
  Dispatcher dispatcher(module, device_map, options, "dispatch_model");
  NamedTensors on_disk =
      options.offload_buffers ? offload::distinct_tensors(module) : offload::distinct_parameters(module);
  std::erase_if(on_disk, [&](const auto& tensor) { return *offload::device_of(tensor.first, device_map) != "disk"; });
  if (on_disk.empty()) return dispatcher.run({});
  if (options.offload_dir.empty()) fail_without_folder(device_map, "dispatch_model");
  if (!offload::has_safetensors(options.offload_dir)) {
    materialize(module);
    checkpoint::save_file(options.offload_dir / "model.safetensors", on_disk, "dispatch_model");
  }
  const SavedValues saved(options.offload_dir, "dispatch_model");
  const auto names = offload::names_of_tensors(module);
  const auto source_of = [&](const TensorItem& item) { return saved.source_of(item, names); };
  for (const TensorItem& item : offload::tensors_by_module(module)) {
    const bool is_read = !item.is_buffer || options.offload_buffers;
    if (is_read && *offload::device_of(item.name, device_map) == "disk") (void)source_of(item);
  }
  dispatcher.run(source_of);
}

void load_checkpoint_and_dispatch(torch::nn::Module& module, const std::filesystem::path& checkpoint,
                                  const DeviceMap& device_map, const LoadDispatchOptions& options) {
  check_dispatch(module, device_map, kLoad);
  check_dtypes(module, options);
  Dispatcher dispatcher(module, device_map, options.dispatch, kLoad);
  SavedValues saved(checkpoint, kLoad);
  const auto names = offload::names_of_tensors(module);
  report_unexpected(saved, names, options.strict);
  if (!disk_modules(device_map).empty() && !offload::has_safetensors(checkpoint)) {
    if (options.dispatch.offload_dir.empty()) fail_without_folder(device_map, kLoad);
    saved.ensure_files(options.dispatch.offload_dir);
  }
  const auto tensors = find_values(module, saved, names, options);
  load_values(tensors, device_map, options.dispatch.offload_buffers);
  dispatcher.run([&](const TensorItem& item) { return saved.source_of(item, names); });
}

DeviceMap load_checkpoint_and_dispatch(torch::nn::Module& module, const std::filesystem::path& checkpoint,
                                       DeviceMapStrategy strategy, const DeviceMapOptions& map,
                                       const LoadDispatchOptions& options) {
  const LoadDispatchOptions loading = joined(map, options);
  check_dtypes(module, loading);
  DeviceMapOptions counted = map;
  counted.dtype = loading.dtype;
  counted.special_dtypes = widened(module, loading);
  counted.offload_buffers = loading.dispatch.offload_buffers;
  const auto limits = strategy == DeviceMapStrategy::sequential
                          ? get_max_memory(map.max_memory)
                          : get_balanced_memory(module, map.max_memory, map.no_split_module_classes, counted.dtype,
                                                counted.special_dtypes, strategy == DeviceMapStrategy::balanced_low_0);
  DeviceMap device_map = infer_auto_device_map(module, limits, counted);
  load_checkpoint_and_dispatch(module, checkpoint, device_map, loading);
  return device_map;
}

}  // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// Models on several devices, the CPU and the disk.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>

#include "accelerate/offload/device_map.hpp"
#include "accelerate/units/unit_plan.hpp"

namespace accelerate {

struct DispatchOptions {
  /// Device of operators on parameters that are on the CPU or the disk. If unset, the first accelerator device of the
  /// map; otherwise the CPU, where parameters on the CPU are used in place.
  std::optional<c10::Device> main_device{};
  /// Folder of the parameters on the disk, as in disk_offload(). Required by dispatch_model() if the map has "disk".
  std::filesystem::path offload_dir{};
  /// Which parameters on the CPU or the disk are copied together.
  units::UnitOptions units{};
  bool prefetch = true;
};

/// Moves the parameters and buffers of a model to the devices of a map. An operator on a parameter first copies its
/// other arguments to the device of the parameter; operators on the results do the same. The results of the model are
/// on the device of its last parameter. Parameters on the CPU and the disk are used as in cpu_offload() and
/// disk_offload(), their buffers are on the main device. With a single device, and none of them "disk", the model is
/// only moved.
/// \throws Error (usage) as check_device_map(), for an invalid device, or for "disk" without offload_dir.
void dispatch_model(torch::nn::Module& module, const DeviceMap& device_map, const DispatchOptions& options = {});

struct LoadDispatchOptions {
  /// If true, a tensor of the checkpoint that the model lacks is an error; otherwise it is a warning.
  bool strict = false;
  DispatchOptions dispatch{};
};

/// Loads weights into a model, for example one of init_empty_weights(), and dispatches it. Parameters on the disk are
/// read from the checkpoint itself if its files are safetensors; otherwise they are written to offload_dir first.
/// \param checkpoint  A safetensors file, an index (.json), a folder with either, or a checkpoint that
///                    Accelerator::load_model() reads. Files of parameters on the disk must not be changed later.
/// \throws Error (data) if the checkpoint lacks a parameter, or has it with another shape or dtype.
void load_checkpoint_and_dispatch(torch::nn::Module& module, const std::filesystem::path& checkpoint,
                                  const DeviceMap& device_map, const LoadDispatchOptions& options = {});

/// How load_checkpoint_and_dispatch() computes a device map.
enum class DeviceMapStrategy {
  automatic,       ///< "auto": as balanced
  balanced,        ///< about equal parts on all accelerator devices
  balanced_low_0,  ///< as little as possible on accelerator device 0
  sequential,      ///< as much as possible on each device
};

/// \param map  Limits and classes of infer_auto_device_map().
/// \returns    The device map.
/// \throws Error (usage) also if a dtype of `map` differs from that of the model, because nothing is converted.
DeviceMap load_checkpoint_and_dispatch(torch::nn::Module& module, const std::filesystem::path& checkpoint,
                                       DeviceMapStrategy strategy, const DeviceMapOptions& map,
                                       const LoadDispatchOptions& options = {});

}  // namespace accelerate

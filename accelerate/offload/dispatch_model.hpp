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
  /// If true, buffers of parts on the CPU or the disk are there, too, so operators must not write to them. If false,
  /// they are on the main device.
  bool offload_buffers = false;
  /// If true, the arguments of operators are copied also if the map has a single device, so inputs may be on another
  /// one. If false, a model on one device is only moved. There are no hooks; the name is that of Hugging Face
  /// Accelerate.
  bool force_hooks = false;
  /// Which parameters on the CPU or the disk are copied together, by the names or the classes of modules.
  units::UnitOptions units{};
  bool prefetch = true;
};

/// Moves the parameters and buffers of a model to the devices of a map. An operator on a parameter first copies its
/// other arguments to the device of the parameter; operators on the results do the same. The results of the model are
/// on the device of its last parameter. Parameters on the CPU and the disk are used as in cpu_offload() and
/// disk_offload(); their buffers are on the main device, or offloaded, too. With a single device that is not "disk",
/// the model is only moved.
///
/// \throws Error (usage) as check_device_map(), for an invalid device, for "disk" without offload_dir, or for a class
///         in `units.classes` that the model lacks.
/// \throws Error (data) if a tensor in offload_dir is missing or has another shape.
void dispatch_model(torch::nn::Module& module, const DeviceMap& device_map, const DispatchOptions& options = {});

struct LoadDispatchOptions {
  /// If true, a tensor of the checkpoint that the model lacks is an error, and so is a buffer that the checkpoint
  /// lacks. If false, the first is a warning, and the buffer keeps its value.
  bool strict = false;
  /// If set, floating-point parameters of the model, and those buffers that the checkpoint has, get this dtype. If
  /// unset, the dtypes of the model stay. Values of the checkpoint are converted in either case.
  std::optional<c10::ScalarType> dtype{};
  /// Dtypes of single tensors of the model, by name. They take precedence over `dtype`.
  SpecialDtypes special_dtypes{};
  DispatchOptions dispatch{};
};

/// Loads weights into a model, for example one of init_empty_weights(), and dispatches it. Parameters on the disk are
/// read from the checkpoint itself if its files are safetensors; otherwise they are written to offload_dir first.
///
/// Values of another dtype than that of the model or the options are converted, as Tensor::to() does: those on devices
/// once, those on the disk whenever they are read, and through a buffer of at most 2 MB.
///
/// \param checkpoint  A safetensors file, an index (.json), a folder with either, or a checkpoint that
///                    Accelerator::load_model() reads. Files of parameters on the disk must not be changed later.
/// \throws Error (data) if the checkpoint lacks a parameter, or has it with another shape.
/// \throws Error (usage) if dtype is not floating-point, if special_dtypes has an unknown tensor, or if the dtype of a
///         tensor with a gradient would change. The model is unchanged after either error.
/// \throws Error (io) if a file cannot be read. Each tensor then has its old or its loaded values.
void load_checkpoint_and_dispatch(torch::nn::Module& module, const std::filesystem::path& checkpoint,
                                  const DeviceMap& device_map, const LoadDispatchOptions& options = {});

/// How load_checkpoint_and_dispatch() computes a device map.
enum class DeviceMapStrategy {
  automatic,       ///< "auto": as balanced
  balanced,        ///< about equal parts on all accelerator devices
  balanced_low_0,  ///< as little as possible on accelerator device 0
  sequential,      ///< as much as possible on each device
};

/// The same with a device map that is computed from the sizes after the conversion.
/// \param map  Options of infer_auto_device_map(). Dtypes and offload_buffers may be set here or in `options`.
/// \returns    The device map.
/// \throws Error (usage) also if dtypes are set in both and differ.
DeviceMap load_checkpoint_and_dispatch(torch::nn::Module& module, const std::filesystem::path& checkpoint,
                                       DeviceMapStrategy strategy, const DeviceMapOptions& map,
                                       const LoadDispatchOptions& options = {});

}  // namespace accelerate

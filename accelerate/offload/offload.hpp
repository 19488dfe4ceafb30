// SPDX-License-Identifier: Apache-2.0
// Runs models with parameters that do not fit on their device.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>

#include "accelerate/units/unit_plan.hpp"

namespace torch::nn {
class Module;
}

namespace accelerate {

struct OffloadOptions {
  /// Device of the operators. If unset, the device of the first parameter.
  std::optional<c10::Device> execution_device{};
  /// If true, buffers are offloaded as parameters are, so operators must not write to them.
  bool offload_buffers = false;
  /// Which parameters are copied together, by the names or the classes of modules.
  units::UnitOptions units{};
  /// If true, the next unit is copied while operators use this one.
  bool prefetch = true;
};

/// Moves the parameters to the CPU. The parameters of a unit are copied to the execution device when an operator uses
/// one of them. Two units have memory there, more only if one operator uses more. Unless they are offloaded, buffers
/// are moved to the execution device. Inputs may be on the CPU; results are on the execution device.
///
/// The parameter objects stay valid. The offload ends for a parameter when Module::to() moves it to another device
/// or dtype while gradients are disabled, or when it is destroyed. Offloaded parameters cannot be written. Those that
/// require a gradient cannot be used while gradients are enabled; frozen ones can, so that gradients of other
/// parameters flow through them. Operators may run on several threads.
///
/// \throws Error (usage) if the execution device is the CPU, if a tensor is sharded, offloaded or dispatched already,
///         or for a class in `units.classes` that the model lacks.
void cpu_offload(torch::nn::Module& module, const OffloadOptions& options = {});

/// As cpu_offload(), but the parameters are in a file. Each unit is read when it is used. The execution device may be
/// the CPU.
/// \param offload_dir  A folder. If it contains weights (model.safetensors, or an index and its files), they are used,
///                     so the module may be from init_empty_weights(); otherwise the parameters are written to it. A
///                     path with the extension .safetensors is such a file. It may be removed, but must not be changed
///                     while the module exists. Values of another dtype are converted whenever they are read.
/// \throws Error (io) for files that cannot be read or written.
/// \throws Error (data) for an invalid file, or one without a parameter of this shape.
/// \throws Error (usage) if a tensor is sharded, offloaded or dispatched already, or for a class in `units.classes`
///         that the model lacks.
void disk_offload(torch::nn::Module& module, const std::filesystem::path& offload_dir,
                  const OffloadOptions& options = {});

}  // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// Private: whether compiled code can run in this process.
#pragma once

#include <c10/core/Device.h>

#include <set>
#include <string>

#include "accelerate/nn/compiled_record.hpp"

namespace accelerate::nn::compiled {

/// Properties of this process to which compiled code is bound.
struct Host {
  std::string torch{};    ///< "2.11.0"
  std::string machine{};  ///< "x86_64"
  std::set<std::string> processor_flags{};

  bool operator==(const Host&) const = default;
};

[[nodiscard]] Host this_host();

/// Returns the flags of the first processor in the text of /proc/cpuinfo. Pure function.
[[nodiscard]] std::set<std::string> processor_flags_in(const std::string& cpuinfo);

/// Pure function.
/// \throws Error (environment) if the package was compiled for another minor version of LibTorch, another processor
///         architecture, or a processor with instructions that this host lacks.
void check_host(const Record& record, const Host& host, const archive::Origin& origin);

/// Properties of a device to which compiled code is bound.
struct DeviceProperties {
  std::string cuda{};        ///< version of this program's CUDA, "13.0"; empty without CUDA
  std::string capability{};  ///< compute capability of a GPU, "9.0"; empty for other devices and without CUDA
};

/// Pure function.
/// \throws Error (environment) if the package was compiled for another device type, another compute capability, or
///         another major version of CUDA.
void check_device(const Record& record, c10::Device device, const DeviceProperties& here,
                  const archive::Origin& origin);

[[nodiscard]] DeviceProperties properties_of(c10::Device device);

}  // namespace accelerate::nn::compiled

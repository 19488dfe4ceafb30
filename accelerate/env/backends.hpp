// SPDX-License-Identifier: Apache-2.0
// Backend names that settings and the launcher accept and that comm can connect.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accelerate::env {

struct BackendName {
  std::string name;
  std::string device;  ///< device type of its tensors: "cpu", "cuda", ...

  bool operator==(const BackendName&) const = default;
};

/// Returns the backends of backends.def, then the added ones.
std::vector<BackendName> backends();

/// Registers the name of an external backend in this process. Repeated registration has no effect.
void add_backend(const BackendName& backend);

/// \param device  If given, only backends for this device type count.
bool is_backend(std::string_view name, std::string_view device = "");

/// Requests any available backend. Overrides a backend name from a weaker source.
inline constexpr std::string_view kAnyBackend = "auto";

/// Returns "mpi, gloo or nccl". If a device type is given, only its backends are listed.
std::string backend_choice(std::string_view device = "");

}  // namespace accelerate::env

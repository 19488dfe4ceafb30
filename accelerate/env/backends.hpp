// SPDX-License-Identifier: Apache-2.0
// The backends by name: what settings and the launcher accept, and comm connects.
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

/// Those of backends.def, then those that were added.
std::vector<BackendName> backends();

/// Makes the name of a backend from outside the library known to this process. The same row again is nothing.
void add_backend(const BackendName& backend);

/// With a device: one for it.
bool is_backend(std::string_view name, std::string_view device = "");

/// Requests any available backend. Overrides a backend name from a weaker source.
inline constexpr std::string_view any_backend = "auto";

/// "mpi, gloo or nccl"; with a device only those for it.
std::string backend_choice(std::string_view device = "");

}  // namespace accelerate::env

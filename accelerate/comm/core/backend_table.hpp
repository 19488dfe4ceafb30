// SPDX-License-Identifier: Apache-2.0
// Table of backends. A new backend is one folder and one row in env/backends.def. Private.
#pragma once

#include <c10/core/DeviceType.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/core/connect_options.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

class Connection;
struct ConnectionContext;

/// The row that a backend's folder defines.
struct BackendRow {
  std::string_view name;
  c10::DeviceType device = c10::DeviceType::CPU;  ///< device type of the tensors it transfers
  /// If null, this build lacks the backend, and `missing` contains the remedy.
  std::shared_ptr<Connection> (*connect)(const ConnectionContext&);
  std::string_view missing;
  bool uses_store;
};

// mpi_row(), gloo_row(), ...: defined in the folder of each backend.
#define ACCELERATE_BACKEND(name, device) const BackendRow& name##_row();
#include "accelerate/env/backends.def"
#undef ACCELERATE_BACKEND

/// Returns all backends between processes, CPU backends in order of preference, then the added ones.
std::vector<const BackendRow*> backend_table();

/// Registers an external backend. Call it before any group connects: settings and the launcher's checks in this process
/// accept its name afterwards. The row must live until the process ends. Repeated registration has no effect.
void add_backend(const BackendRow& row);

/// Selects the backend for CPU tensors. Precedence: options, ACCELERATE_BACKEND, mpi if MPI's wire-up is present, gloo.
/// On a rank with a device, the name of that device's own backend counts as unset. Pure function.
/// \throws Error (usage) for an unknown name; Error (environment) for a backend that is not built, and for nccl without
///         a GPU.
const BackendRow& choose_backend(const env::Variables& variables, const ConnectOptions& options,
                                 std::span<const BackendRow* const> table, const RankContext& place);

/// Selects the backend for tensors of a device other than the CPU. Pure function.
/// \throws Error (environment) if no backend supports the device type or the backend is not built.
const BackendRow& device_backend(c10::DeviceType device, std::span<const BackendRow* const> table,
                                 const RankContext& place);

}  // namespace accelerate::comm

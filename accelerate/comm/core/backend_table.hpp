// SPDX-License-Identifier: Apache-2.0
// The table of backends: a new one is one folder and one row, in env/backends.def. Private.
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

/// What a backend's folder gives for its row.
struct BackendRow {
  std::string_view name;
  c10::DeviceType device = c10::DeviceType::CPU;  ///< whose tensors it carries
  /// Null: this build lacks it, `missing` says what to do.
  std::shared_ptr<Connection> (*connect)(const ConnectionContext&);
  std::string_view missing;
  bool uses_store;
};

// mpi_row(), gloo_row(), ...: each folder defines its own.
#define ACCELERATE_BACKEND(name, device) const BackendRow& name##_row();
#include "accelerate/env/backends.def"
#undef ACCELERATE_BACKEND

/// Every backend between processes, in the order of preference among those for the CPU; then those that were added.
std::vector<const BackendRow*> backend_table();

/// A backend from outside the library, before anything connects with it: settings and the launcher's checks in this
/// process know its name from then on. The row must live as long as the process; again is nothing.
void add_backend(const BackendRow& row);

/// The backend for CPU tensors. Precedence: options, ACCELERATE_BACKEND, mpi where MPI's wire-up shows, gloo. With a
/// device of its own the name of that device's backend asks for what is there anyway, and counts as not asked. Throws
/// Error: usage for an unknown name; environment for one that is not built, and for nccl without a GPU. Pure.
const BackendRow& choose_backend(const env::Variables& variables, const ConnectOptions& options,
                                 std::span<const BackendRow* const> table, const Place& place);

/// The backend for the tensors of a device that is not the CPU. Throws Error (environment) where there is none, or it
/// is not built. Pure.
const BackendRow& device_backend(c10::DeviceType device, std::span<const BackendRow* const> table, const Place& place);

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
// The table of backends: a new one is one file and one row. Private.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/core/connect_options.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

class Connection;
struct ConnectionContext;

/// A row of the table.
struct BackendRow {
  std::string_view name;
  /// Null: this build lacks it, `missing` says what to do.
  std::shared_ptr<Connection> (*connect)(const ConnectionContext&);
  std::string_view missing;
  bool uses_store;
};

const BackendRow& gloo_row();
const BackendRow& mpi_row();
const BackendRow& nccl_row();

/// Every backend between processes, in the order of preference among those for the CPU.
std::span<const BackendRow* const> backend_table();

/// The backend for CPU tensors. Precedence: options, ACCELERATE_BACKEND, mpi where MPI's wire-up shows, gloo. With a
/// GPU "nccl" asks for what is there anyway, and counts as not asked. Throws Error: usage for an unknown name;
/// environment for one that is not built, and for nccl without a GPU. Pure.
const BackendRow& choose_backend(const env::Variables& variables, const ConnectOptions& options,
                                 std::span<const BackendRow* const> table, const Place& place);

/// The backend for GPU tensors. Throws Error (environment) where it is not built. Pure.
const BackendRow& gpu_backend(std::span<const BackendRow* const> table, const Place& place);

}  // namespace accelerate::comm

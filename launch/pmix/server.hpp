// SPDX-License-Identifier: Apache-2.0
// PMIx server for MPI ranks, which replaces mpirun.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/env/process_env.hpp"

namespace accelerate::launch {

struct MpiAbort {
  int64_t rank = 0;
  int code = 0;  ///< the argument of MPI_Abort
};

/// Serves the ranks of one job on this machine. A process can have only one in its lifetime: libpmix aborts on a
/// second.
class MpiServer {
 public:
  MpiServer() = default;
  MpiServer(const MpiServer&) = delete;
  MpiServer& operator=(const MpiServer&) = delete;
  /// Additional environment variables for this rank.
  virtual env::Variables variables(int64_t rank) = 0;
  /// Readable after a rank joined or aborted, until clear_wakeup() is called.
  [[nodiscard]] virtual int wake_fd() const = 0;
  virtual void clear_wakeup() const = 0;
  [[nodiscard]] virtual std::optional<MpiAbort> aborted() const = 0;
  /// True if this rank called MPI_Init, which waits for all ranks.
  [[nodiscard]] virtual bool joined_mpi_init(int64_t rank) const = 0;
  /// True if this rank called MPI_Init, but not MPI_Finalize.
  [[nodiscard]] virtual bool not_finalized(int64_t rank) const = 0;

 protected:
  ~MpiServer() = default;
};

/// Reason why serve_mpi would fail on this machine, with the remedy; empty if it would succeed.
std::optional<std::string> mpi_server_unavailable_reason();

/// Removes variables that would mislead libpmix from this process's environment, loads libpmix and starts the server.
///
/// \param temporary      Folder for the files of PMIx and Open MPI; owned by the caller.
/// \param shared_memory  Folder for the ranks' shared memory; owned by the caller.
/// \returns the server, which lives until the process ends.
/// \throws LaunchError (1) if libpmix cannot be loaded or the server cannot start.
MpiServer& serve_mpi(int64_t ranks, const std::string& temporary, const std::string& shared_memory);

}  // namespace accelerate::launch

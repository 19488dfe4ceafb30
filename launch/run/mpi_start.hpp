// SPDX-License-Identifier: Apache-2.0
// Tracks which ranks have reached MPI_Init, where every rank waits for all others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/pmix/server.hpp"
#include "launch/run/worker_processes.hpp"

namespace accelerate::launch {

struct MpiInitStatus {
  int64_t rank = 0;
  bool running = true;
  bool has_joined = false;  ///< called MPI_Init
  bool finalized = true;    ///< true after MPI_Finalize, or if MPI_Init was not called
};

/// State of the workers in the server.
std::vector<MpiInitStatus> mpi_init_status(const std::vector<Worker>& workers, const MpiServer& server);

/// Returns the ranks that have not reached MPI_Init.
std::vector<MpiInitStatus> not_in_mpi_init(const std::vector<MpiInitStatus>& ranks);

/// As not_in_mpi_init(), but empty while no rank waits for them, because programs need not use MPI.
std::vector<MpiInitStatus> awaited_in_mpi_init(const std::vector<MpiInitStatus>& ranks);

/// Returns "worker 1 has" or "workers 1, 3 have".
std::string names(const std::vector<MpiInitStatus>& ranks);

}  // namespace accelerate::launch

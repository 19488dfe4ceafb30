// SPDX-License-Identifier: Apache-2.0
// Who has come to MPI's start, where all ranks wait for all others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/pmix/server.hpp"
#include "launch/run/lifetimes.hpp"

namespace accelerate::launch {

struct AtMpiStart {
  int64_t rank = 0;
  bool running = true;
  bool came = false;      ///< called MPI_Init
  bool finalized = true;  ///< called MPI_Finalize since, or never came
};

/// As the server knows it.
std::vector<AtMpiStart> at_mpi_start(const std::vector<Worker>& workers, const MpiServer& server);

/// Those that have not come.
std::vector<AtMpiStart> absent_of(const std::vector<AtMpiStart>& ranks);

/// The same, none while nobody waits for them: programs need not use MPI.
std::vector<AtMpiStart> awaited(const std::vector<AtMpiStart>& ranks);

/// "worker 1 has", "workers 1, 3 have"
std::string names(const std::vector<AtMpiStart>& ranks);

}  // namespace accelerate::launch

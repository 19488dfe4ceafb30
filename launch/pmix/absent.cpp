// SPDX-License-Identifier: Apache-2.0
// Replaces server.cpp in a build without MPI or PMIx's headers.
#include "launch/plan/error.hpp"
#include "launch/pmix/server.hpp"

namespace accelerate::launch {

std::optional<std::string> mpi_server_unavailable_reason() { return WHY_NO_MPI_SERVER; }

MpiServer& serve_mpi(int64_t /*ranks*/, const std::string& /*temporary*/, const std::string& /*shared_memory*/) {
  fail(ErrorKind::environment, "{}", WHY_NO_MPI_SERVER);
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Replaces backend.cpp in a build without MPI.
#include "accelerate/comm/core/backend_table.hpp"

namespace accelerate::comm {

const BackendRow& mpi_row() {
  static constexpr BackendRow row{.name = "mpi",
                                  .connect = nullptr,
                                  .missing = "install libopenmpi-dev and build again (ACCELERATE_WITH_MPI=ON)",
                                  .uses_store = false};
  return row;
}

}  // namespace accelerate::comm

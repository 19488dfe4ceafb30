// SPDX-License-Identifier: Apache-2.0
#include "fault_mpi.hpp"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace {

bool gives_less = false;

}  // namespace

// Uses MPI's profiling interface: the program's function replaces the library's, which is available as PMPI_...
extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int code = PMPI_Init_thread(argc, argv, required, provided);
  if (gives_less) *provided = MPI_THREAD_SERIALIZED;
  return code;
}

namespace faults {

void let_mpi_give_less() { gives_less = true; }

void initialise_mpi_without_threads() { MPI_Init(nullptr, nullptr); }

void initialise_and_finalize_mpi() {
  MPI_Init(nullptr, nullptr);
  MPI_Finalize();
}

}  // namespace faults

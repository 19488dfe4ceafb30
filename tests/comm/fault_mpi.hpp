// SPDX-License-Identifier: Apache-2.0
// MPI libraries that do not meet the library's requirements.
#pragma once

namespace faults {

/// Makes MPI_Init_thread return MPI_THREAD_SERIALIZED, as an MPI without full thread support does.
void let_mpi_give_less();
/// Initialises MPI in the program, without threads.
void initialise_mpi_without_threads();
void initialise_and_finalize_mpi();

}  // namespace faults

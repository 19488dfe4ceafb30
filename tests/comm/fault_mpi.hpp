// SPDX-License-Identifier: Apache-2.0
// An MPI that is not as the library needs it.
#pragma once

namespace faults {

/// MPI_Init_thread gives MPI_THREAD_SERIALIZED from now on, as an MPI does that knows no more.
void let_mpi_give_less();
/// The program initialises MPI by itself, without threads.
void initialise_mpi_without_threads();
void initialise_and_finalize_mpi();

}  // namespace faults

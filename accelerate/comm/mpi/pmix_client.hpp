// SPDX-License-Identifier: Apache-2.0
// Calls into the PMIx library that Open MPI has loaded. Without PMIx they do nothing. Private to the mpi backend.
#pragma once

namespace accelerate::comm {

/// Waits until all ranks of the job have called it. With Slurm 22.05 and PMIx 4.2.2 the fence at the end of
/// MPI_Init only waits for the ranks of the own host, and a message to a rank that is still in MPI_Init ends that rank
/// with a segmentation fault. Those versions do wait for all ranks if the fence collects data. Blocks without a
/// timeout.
void wait_for_all_ranks_of_job();

/// Announces a deliberate end without MPI_Finalize, which could wait for ranks that never join. Without it, exit code 0
/// counts as a crash and the other ranks are stopped.
void exit_without_finalize() noexcept;

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
// Finds the missing ranks during MPI_Init, where MPI itself gives no information. Private to the mpi backend.
#pragma once

#include <optional>
#include <string>

#include "accelerate/comm/rendezvous/sockets.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

/// Returns the endpoint at which ranks of several machines diagnose each other without MPI: MASTER_ADDR:MASTER_PORT
/// (also derived from Slurm's variables), otherwise the machine of mpirun, because rank 0 usually runs there and Open
/// MPI 4 passes its address to every rank. Returns nothing on a single machine, or if no address is known or mpirun's
/// machine has several.
std::optional<Endpoint> diagnosis_address(const env::ProcessEnv& process, const env::Variables& variables);

/// Reports to the other ranks that this one waits, collects their reports for two seconds and returns a diagnosis:
/// "no response from rank 2", "all ranks have joined, but MPI does not connect them", or "" if rank 0 cannot listen.
/// Rank 0 listens at the endpoint and the others connect to it; if it does not answer, they know no other rank. Takes
/// at most three seconds.
std::string diagnose_start(const Endpoint& place, const env::ProcessEnv& process) noexcept;

}  // namespace accelerate::comm

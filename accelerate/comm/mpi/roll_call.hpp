// SPDX-License-Identifier: Apache-2.0
// Who is missing in MPI's start, where MPI itself can tell nobody. Private to the mpi backend.
#pragma once

#include <optional>
#include <string>

#include "accelerate/comm/rendezvous/sockets.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

/// Where ranks of several machines ask after one another without MPI: at MASTER_ADDR:MASTER_PORT, which Slurm's
/// variables give too, else at the machine of mpirun, where rank 0 usually is and whose address Open MPI 4 tells every
/// rank. Nothing on one machine, and where no address is known or mpirun's machine has several.
std::optional<Endpoint> roll_call_place(const env::ProcessEnv& process, const env::Variables& variables);

/// Tells the other ranks that this one waits, listens two seconds for theirs, and says who is silent. Rank 0 listens at
/// the place, the others go there: where it does not answer they know of nobody else.
/// "nothing was heard from rank 2", "all ranks are there, MPI does not connect them"; "" where rank 0 cannot listen.
/// Takes three seconds at most.
std::string call_roll(const Endpoint& place, const env::ProcessEnv& process) noexcept;

}  // namespace accelerate::comm

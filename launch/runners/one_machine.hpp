// SPDX-License-Identifier: Apache-2.0
// One machine of several, each with its own launcher.
#pragma once

#include "launch/plan/machine.hpp"
#include "launch/plan/options.hpp"
#include "launch/run/supervise.hpp"

namespace accelerate::launch {

/// \throws LaunchError (2) for MPI over several machines, which mpirun or srun must start.
void check_backend(const LaunchOptions& options, int64_t machines);

/// Performs the rendezvous with the other launchers, starts the ranks of this machine and ends with all machines.
///
/// \param options  Resolved options with num_machines above 1.
/// \param timeout  Maximum time for the rendezvous.
/// \returns 0, or the exit code of the rank that failed first on any machine.
int run_one_machine(const LaunchOptions& options, const Machine& machine, const env::Variables& variables,
                    std::chrono::milliseconds timeout, const SuperviseOptions& supervise_options);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// One machine of several: somebody started a launcher on each of them, by hand or otherwise.
#pragma once

#include "launch/plan/machine.hpp"
#include "launch/plan/options.hpp"
#include "launch/run/supervise.hpp"

namespace accelerate::launch {

/// Throws LaunchError (2) for MPI over several machines, which others start.
void check_backend(const LaunchOptions& options, int64_t machines);

/// Meets the other launchers, starts the ranks of this machine and ends with all.
///
/// options   resolved, with num_machines above 1
/// timeout   for the others to come
/// returns   0, or the exit code of the rank that failed first, wherever it was
int run_one_machine(const LaunchOptions& options, const Machine& machine, const env::Variables& variables,
                    std::chrono::milliseconds timeout, const SuperviseOptions& supervise_options);

}  // namespace accelerate::launch

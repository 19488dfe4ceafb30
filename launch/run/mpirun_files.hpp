// SPDX-License-Identifier: Apache-2.0
// Removes files of an mpirun that was killed.
#pragma once

#include <sys/types.h>

#include "accelerate/env/process_env.hpp"

namespace accelerate::launch {

/// Removes the session folder of Open MPI 4's mpirun on this machine, if it exists:
/// TMPDIR/ompi.HOST.USER/pid.PID.
///
/// \param mpirun     Process id of mpirun, which must have ended.
/// \param variables  The environment of mpirun.
void remove_files_of_mpirun(pid_t mpirun, const env::Variables& variables);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// What an mpirun that was killed could not remove itself.
#pragma once

#include <sys/types.h>

#include "accelerate/env/process_env.hpp"

namespace accelerate::launch {

/// Removes the session folder of Open MPI 4's mpirun on this machine, where there is one:
/// TMPDIR/ompi.HOST.USER/pid.PID.
///
/// mpirun      it has ended
/// variables   its environment
void remove_files_of_mpirun(pid_t mpirun, const env::Variables& variables);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Describes the environment and command of a rank for --debug.
#pragma once

#include <sys/types.h>

#include <string>

#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// Returns one line with the environment and command of a worker: "accelerate_launch: rank 1 is process 4121: RANK=1
/// WORLD_SIZE=2 ... ./train --epochs 3". Only variables that differ from the launcher's are listed, quoted for a shell.
/// The job's secrets are omitted. Pure function.
std::string launch_trace(const WorkerPlan& worker, pid_t pid, const env::Variables& inherited);

}  // namespace accelerate::launch

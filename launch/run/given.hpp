// SPDX-License-Identifier: Apache-2.0
// What a rank was given, for --debug.
#pragma once

#include <sys/types.h>

#include <string>

#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// "accelerate_launch: rank 1 is process 4121: RANK=1 WORLD_SIZE=2 ... ./train --epochs 3": the variables that differ
/// from the launcher's own, and the command, as a shell reads them. What keeps strangers out of the job is not shown.
/// One line. Pure.
std::string what_it_was_given(const WorkerPlan& worker, pid_t pid, const env::Variables& inherited);

}  // namespace accelerate::launch

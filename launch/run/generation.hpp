// SPDX-License-Identifier: Apache-2.0
// One start of all workers: what the guardian does.
#pragma once

#include "accelerate/base/file_descriptor.hpp"
#include "launch/plan/plan.hpp"
#include "launch/run/job_folders.hpp"
#include "launch/run/outcome.hpp"
#include "launch/run/supervise_options.hpp"

namespace accelerate::launch {

/// Starts the workers, passes output and signals on, stops all when one fails, and sees to it that nothing of them is
/// left: the caller is a sub-reaper without other children.
///
/// launcher_gone   at its end of file the launcher was killed: workers are then told to end
/// input           rank 0's stdin where ours is a terminal; holds nothing: /dev/null
/// Throws LaunchError when a worker cannot be started; those that were are stopped.
Outcome run_generation(const LaunchPlan& plan, const SuperviseOptions& options, const JobFolders& folders,
                       int launcher_gone, base::FileDescriptor input = {});

}  // namespace accelerate::launch

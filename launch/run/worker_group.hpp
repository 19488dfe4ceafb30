// SPDX-License-Identifier: Apache-2.0
// One restart attempt of the worker group; runs in the guardian process.
#pragma once

#include "accelerate/base/file_descriptor.hpp"
#include "launch/plan/plan.hpp"
#include "launch/run/attempt_result.hpp"
#include "launch/run/job_folders.hpp"
#include "launch/run/supervise_options.hpp"

namespace accelerate::launch {

/// Starts the workers, forwards output and signals, stops all workers if one fails, and removes every process that they
/// left behind. The caller must be a sub-reaper without other children.
///
/// \param launcher_gone  Descriptor that reaches end of file when the launcher is killed; the workers are then ended.
/// \param input          Stdin of rank 0 if the launcher's stdin is a terminal. If empty, rank 0 reads /dev/null.
/// \throws LaunchError if a worker cannot be started; workers that were already started are stopped.
AttemptResult run_worker_group(const LaunchPlan& plan, const SuperviseOptions& options, const JobFolders& folders,
                               int launcher_gone, base::FileDescriptor input = {});

}  // namespace accelerate::launch

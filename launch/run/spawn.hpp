// SPDX-License-Identifier: Apache-2.0
// Starts one worker.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>

#include "accelerate/base/file_descriptor.hpp"
#include "accelerate/env/process_env.hpp"
#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// A worker that runs. Its process group is its own, named by pid; out and err are the ends we read, non-blocking.
struct Process {
  pid_t pid = -1;
  base::FileDescriptor out{};
  base::FileDescriptor err{};
};

/// The path that a shell would run for this name, relative to the given PATH.
/// Throws LaunchError: 127 when there is no such file, 126 when it may not be executed.
std::string find_program(const std::string& name, const env::Variables& variables);
/// Whether there is one.
bool is_program(const std::string& name, const env::Variables& variables);

/// Forks and executes. The worker dies (SIGKILL) with the calling thread; rank 0 keeps our stdin unless that is a
/// terminal (a process group in the background may not read one) and then has input, the others read /dev/null.
///
/// program      result of find_program
/// open_files   the worker's limit
/// input        in place of a terminal; -1: /dev/null
/// Throws LaunchError (126) when the system cannot execute it.
Process spawn(const std::string& program, const WorkerPlan& worker, const rlimit& open_files, int input = -1);

}  // namespace accelerate::launch

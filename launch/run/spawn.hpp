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

/// A running worker with its own process group, identified by pid. out and err are non-blocking read ends.
struct Process {
  pid_t pid = -1;
  base::FileDescriptor out{};
  base::FileDescriptor err{};
};

/// Returns the path that a shell would run for this name with the given PATH.
/// \throws LaunchError with code 127 if the file does not exist, or 126 if it is not executable.
std::string find_program(const std::string& name, const env::Variables& variables);
/// True if find_program() would succeed.
bool is_program(const std::string& name, const env::Variables& variables);

/// Forks and executes a worker. The worker receives SIGKILL when the calling thread ends. Rank 0 inherits our stdin
/// unless it is a terminal, because a background process group cannot read a terminal; rank 0 then reads `input`. The
/// other ranks read /dev/null.
///
/// \param program     Result of find_program().
/// \param open_files  The worker's limit of open files.
/// \param input       Replaces a terminal. If -1, /dev/null is used.
/// \throws LaunchError (126) if the system cannot execute the program.
Process spawn(const std::string& program, const WorkerPlan& worker, const rlimit& open_files, int input = -1);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Where the threads of another process are, by gdb or eu-stack.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace accelerate::launch {

/// The stacks of all threads of a process; a line that says why there are none. Waits so long at most; what was
/// printed until then is returned.
std::string stacks_of(pid_t pid, std::chrono::milliseconds limit);

}  // namespace accelerate::launch

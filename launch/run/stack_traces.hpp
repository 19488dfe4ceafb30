// SPDX-License-Identifier: Apache-2.0
// Reads the stacks of another process's threads with gdb or eu-stack.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace accelerate::launch {

/// Returns the stacks of all threads of a process, or one line with the reason why they are unavailable. Waits for at
/// most `limit` and then returns the output so far.
std::string stacks_of(pid_t pid, std::chrono::milliseconds limit);

}  // namespace accelerate::launch

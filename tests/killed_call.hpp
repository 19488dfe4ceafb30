// SPDX-License-Identifier: Apache-2.0
// Kills a process at one of its system calls.
#pragma once

#include <functional>

namespace testing {

/// Runs `run` in a child process that is killed with signal 9 before its n-th call that renames or removes a file.
/// Returns true if it was killed, false if it made fewer calls.
bool killed_at_call(int n, const std::function<void()>& run);

}  // namespace testing

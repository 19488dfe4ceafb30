// SPDX-License-Identifier: Apache-2.0
// A process that is killed at one of its calls of the system.
#pragma once

#include <functional>

namespace testing {

/// Runs it in a process of its own, which is killed with signal 9 before its n-th call that renames or removes a file.
/// Returns whether it was killed: false if it made fewer calls.
bool killed_at_call(int n, const std::function<void()>& run);

}  // namespace testing

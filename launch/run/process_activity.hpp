// SPDX-License-Identifier: Apache-2.0
// Describes a process that should have ended.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace accelerate::launch {

/// Returns "is stopped", "computes" or "waits".
std::string_view process_activity(pid_t pid);

}  // namespace accelerate::launch

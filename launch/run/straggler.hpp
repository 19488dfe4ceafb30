// SPDX-License-Identifier: Apache-2.0
// A process that runs on when it should have ended.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace accelerate::launch {

/// "is stopped", "computes" or "waits".
std::string_view what_it_does(pid_t pid);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// gloo checks message sizes on its own thread and terminates the process if they differ. Private to gloo.
#pragma once

#include "accelerate/base/error.hpp"

namespace accelerate::comm {

/// From now on this termination prints an explanation with the way to find the call, and exits with code 1. Other
/// terminations are unchanged.
void install_terminate_message(const RankContext& place);

}  // namespace accelerate::comm

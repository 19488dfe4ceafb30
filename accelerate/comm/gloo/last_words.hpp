// SPDX-License-Identifier: Apache-2.0
// gloo checks the sizes of messages on a thread of its own and ends the process where they differ. Private to gloo.
#pragma once

#include "accelerate/base/error.hpp"

namespace accelerate::comm {

/// From now on that end says in our words what happened, and how to find the call; the exit code is 1. Other ends of
/// the process are as they were.
void say_what_gloo_ends_for(const Place& place);

}  // namespace accelerate::comm

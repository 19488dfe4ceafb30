// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch/meet/meeting.hpp"

namespace accelerate::launch {

/// Machine 0's side of meet().
Gathered gather(const Invitation& invitation);

}  // namespace accelerate::launch

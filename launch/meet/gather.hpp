// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch/meet/meeting.hpp"

namespace accelerate::launch {

/// The part of meet() on machine 0.
Gathered gather(const Invitation& invitation);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Properties of this build.
#pragma once

#include "launch/commands/environment.hpp"

namespace accelerate::launch {

Facts build_info();

}  // namespace accelerate::launch

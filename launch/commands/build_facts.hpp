// SPDX-License-Identifier: Apache-2.0
// Properties of this build.
#pragma once

#include "launch/commands/environment.hpp"

namespace accelerate::launch {

Facts facts_of_build();

}  // namespace accelerate::launch

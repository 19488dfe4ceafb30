// SPDX-License-Identifier: Apache-2.0
// What this build was made of.
#pragma once

#include "launch/commands/environment.hpp"

namespace accelerate::launch {

Facts facts_of_build();

}  // namespace accelerate::launch

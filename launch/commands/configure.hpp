// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch/commands/command.hpp"

namespace accelerate::launch {

/// The program: accelerate_config [default|update] [options]. Writes questions to stderr and reads answers from stdin.
CommandResult configure(const Arguments& arguments);

}  // namespace accelerate::launch

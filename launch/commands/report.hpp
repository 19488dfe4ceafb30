// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch/commands/command.hpp"

namespace accelerate::launch {

/// The program: accelerate_report [--output FILE] DIR.
CommandResult make_report(const Arguments& arguments);

}  // namespace accelerate::launch

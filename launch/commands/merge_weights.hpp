// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch/commands/command.hpp"

namespace accelerate::launch {

/// The program: accelerate_merge_weights [options] DIR OUT. Merges a sharded safetensors model, or the
/// ranks' parts of a model in a checkpoint, into one file.
CommandResult merge_weights(const Arguments& arguments);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Commands that read checkpoint folders: list the contents, verify them, compare two checkpoints.
#pragma once

#include <filesystem>

#include "launch/commands/command.hpp"

namespace accelerate::launch {

inline constexpr std::string_view kCheckpointProgram = "accelerate_checkpoint";

/// Describes a folder's manifest and lists its tensors. For a folder that contains checkpoints, returns one line each.
/// \throws Error (io) if the folder contains neither.
CommandResult inspect(const std::filesystem::path& folder, bool tensors);

/// Returns one line per file of a checkpoint, or of all checkpoints in a folder. The code is 1 if a file is damaged.
/// \param checksums  If true, all bytes are read; otherwise only sizes and headers are checked.
CommandResult verify(const std::filesystem::path& folder, bool checksums);

/// Compares two checkpoints, model folders or files: tensors by name with their distance, numbers and texts by path.
/// The code is 0 if they are equal, otherwise 1.
/// \param most  Maximum number of lines per file.
CommandResult diff(const std::filesystem::path& left, const std::filesystem::path& right, size_t most);

/// The program: accelerate_checkpoint inspect|verify|diff ... As for diff, an error has exit code 2.
CommandResult checkpoint(const Arguments& arguments);

}  // namespace accelerate::launch

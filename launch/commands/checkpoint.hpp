// SPDX-License-Identifier: Apache-2.0
// Looks into checkpoints' folders: what they hold, whether they are whole, how two differ.
#pragma once

#include <filesystem>

#include "launch/commands/command.hpp"

namespace accelerate::launch {

inline constexpr std::string_view checkpoint_program = "accelerate_checkpoint";

/// A folder's manifest in words, and its tensors one by one; of a folder with checkpoints in it, a line for each.
/// Throws Error (io) where there is neither.
Answer inspect(const std::filesystem::path& folder, bool tensors);

/// A line for each file of a checkpoint, or of all checkpoints in a folder. The code is 1 where something is wrong.
/// checksums   read all bytes; else sizes and headers only
Answer verify(const std::filesystem::path& folder, bool checksums);

/// What differs between two checkpoints, models' folders or files: tensors by name with how far they are apart, numbers
/// and texts by path. The code is 0 where nothing does, else 1.
/// most   lines for each file
Answer diff(const std::filesystem::path& left, const std::filesystem::path& right, size_t most);

/// The program: accelerate_checkpoint inspect|verify|diff ... Trouble is code 2, as diff's.
Answer checkpoint(const Arguments& arguments);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Log files of workers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// Opens <folder>/rank_<rank>.log for appending and creates the folder if needed. Output of earlier attempts is kept
/// and separated by one line.
///
/// \param start  Text of the separator line: "restart 1, 2026-11-22 15:04:05".
/// \throws LaunchError (1) if the folder or the file cannot be opened.
base::FileDescriptor open_log(const std::string& folder, int64_t rank, std::string_view start);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// What a worker prints, in a file of its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// Opens <folder>/rank_<rank>.log for appending, and the folder where it is not there. What a start before this one
/// wrote is kept, and a line tells where it ends.
///
/// start   what that line says: "restart 1, 2026-11-22 15:04:05"
/// Throws LaunchError (1).
base::FileDescriptor open_log(const std::string& folder, int64_t rank, std::string_view start);

}  // namespace accelerate::launch

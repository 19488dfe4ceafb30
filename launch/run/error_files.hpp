// SPDX-License-Identifier: Apache-2.0
// What workers say of their own failure: a file each, named by TORCHELASTIC_ERROR_FILE, as under torchrun.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/error_file.hpp"

namespace accelerate::launch {

/// The file of a rank: "<folder>/error_3.json".
std::string error_file(const std::string& folder, int64_t rank);

/// What the rank wrote; nothing where it wrote nothing that can be read.
std::optional<base::ErrorNote> read_error_note(const std::string& folder, int64_t rank);

/// The error of another rank that is older than this one's: it may be the cause. Pure.
///
/// notes   of ranks, any order
std::optional<std::pair<int64_t, base::ErrorNote>> earlier_error(
    const std::vector<std::pair<int64_t, base::ErrorNote>>& notes, int64_t rank);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Error files that failed workers write, one per rank. TORCHELASTIC_ERROR_FILE names them, as under torchrun.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/error_file.hpp"

namespace accelerate::launch {

/// Path of a rank's file: "<folder>/error_3.json".
std::string error_file(const std::string& folder, int64_t rank);

/// Returns the rank's error note, or nothing if the file is missing or unreadable.
std::optional<base::ErrorRecord> read_error_record(const std::string& folder, int64_t rank);

/// Returns the error of another rank that is older than this rank's error, because it may be the cause. Pure function.
///
/// \param notes  Notes of all ranks, in any order.
std::optional<std::pair<int64_t, base::ErrorRecord>> earlier_error(
    const std::vector<std::pair<int64_t, base::ErrorRecord>>& notes, int64_t rank);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Summaries of all ranks as a file, which accelerate_report reads (accelerate/tracking/run_profile.hpp).
#pragma once

#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/profile/spans.hpp"

namespace accelerate::profile {

/// One rank's; its operators are the longest fifty.
[[nodiscard]] std::string summary_json(const TraceSummary& summary, const Place& place);

/// {"ranks": [...]} of such texts.
[[nodiscard]] std::string summaries_json(const std::vector<std::string>& ranks);

}  // namespace accelerate::profile

// SPDX-License-Identifier: Apache-2.0
// Summaries of all ranks as a file, which accelerate_report reads (accelerate/tracking/run_profile.hpp).
#pragma once

#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/profile/spans.hpp"

namespace accelerate::profile {

/// Returns the summary of one rank, with its fifty longest operators.
[[nodiscard]] std::string summary_json(const TraceSummary& summary, const RankContext& place);

/// Combines such texts to {"ranks": [...]}.
[[nodiscard]] std::string summaries_json(const std::vector<std::string>& ranks);

}  // namespace accelerate::profile

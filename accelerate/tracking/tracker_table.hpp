// SPDX-License-Identifier: Apache-2.0
// Trackers by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/tracker.hpp"

namespace accelerate::tracking {

#define ACCELERATE_TRACKER(name) std::unique_ptr<Tracker> make_##name();
#include "accelerate/tracking/tracker_table.def"
#undef ACCELERATE_TRACKER

/// "csv", "jsonl", ...
[[nodiscard]] std::vector<std::string> tracker_names();

/// Not started. Null for a name that no tracker of the library has.
[[nodiscard]] std::unique_ptr<Tracker> make_tracker(std::string_view name);

}  // namespace accelerate::tracking

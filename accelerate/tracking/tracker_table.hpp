// SPDX-License-Identifier: Apache-2.0
// Table of the library's trackers.
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

/// Returns "csv", "jsonl", ...
[[nodiscard]] std::vector<std::string> tracker_names();

/// Creates a tracker without starting it. Returns null for an unknown name.
[[nodiscard]] std::unique_ptr<Tracker> make_tracker(std::string_view name);

}  // namespace accelerate::tracking

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "accelerate/tracking/run_log.hpp"
#include "accelerate/tracking/run_profile.hpp"

namespace accelerate::tracking {

/// What one metrics.jsonl says, and where it lies.
struct LoggedFile {
  std::string name{};  ///< of its folder, below the one that was asked for
  RunLogs logs{};
};

/// One profile_summary.json, and where it lies.
struct LoggedProfile {
  std::string name{};
  std::vector<RankProfile> ranks{};
};

struct LoggedFolder {
  std::vector<LoggedFile> files{};
  std::vector<LoggedProfile> profiles{};
  std::vector<std::string> unreadable_profiles{};  ///< files of that name that are none
  std::vector<std::string> unreadable_files{};     ///< "b/metrics.jsonl cannot be read: Permission denied"
};

/// Every metrics.jsonl and profile_summary.json in a folder and below it, by name.
/// Throws Error (io) where there is no such folder and where no such file in it can be read; Error (data) where there
/// is no such file in it.
[[nodiscard]] LoggedFolder read_logged_folder(const std::filesystem::path& folder);

/// A page of HTML that needs no other file and no network: for each run its configuration, its length, its curves with
/// throughput, what every number began, ended and went through, and its texts; for each profile where the time of each
/// rank went.
[[nodiscard]] std::string report_html(const LoggedFolder& folder);

}  // namespace accelerate::tracking

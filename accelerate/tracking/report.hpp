// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "accelerate/tracking/run_log.hpp"
#include "accelerate/tracking/run_profile.hpp"

namespace accelerate::tracking {

/// Content and path of one metrics.jsonl.
struct LoggedFile {
  std::string name{};  ///< its folder relative to the requested one
  RunLogs logs{};
};

/// Content and path of one profile_summary.json.
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

/// Reads every metrics.jsonl and profile_summary.json in a folder and its subfolders, sorted by name.
/// \throws Error (io) if the folder does not exist or none of its files is readable; Error (data) if it contains no
/// such
///         file.
[[nodiscard]] LoggedFolder read_logged_folder(const std::filesystem::path& folder);

/// A page of HTML that needs no other file and no network: for each run its configuration, its length, its curves with
/// throughput, what every number began, ended and went through, and its texts; for each profile where the time of each
/// rank went.
[[nodiscard]] std::string report_html(const LoggedFolder& folder);

}  // namespace accelerate::tracking

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
  std::string name{};  ///< folder of the file, relative to the requested one
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
  std::vector<std::string> unreadable_profiles{};  ///< files of that name without a valid profile
  std::vector<std::string> unreadable_files{};     ///< "b/metrics.jsonl cannot be read: Permission denied"
};

/// Reads every metrics.jsonl and profile_summary.json in a folder and its subfolders, sorted by name.
/// \throws Error (io) if the folder does not exist or none of its files is readable.
/// \throws Error (data) if the folder contains no such file.
[[nodiscard]] LoggedFolder read_logged_folder(const std::filesystem::path& folder);

/// Returns a self-contained HTML page that needs no network. For each run it shows the configuration, the duration, all
/// curves with the throughput, first, lowest, highest and last value of every number, and the texts; for each profile,
/// the shares of time of each rank.
[[nodiscard]] std::string report_html(const LoggedFolder& folder);

}  // namespace accelerate::tracking

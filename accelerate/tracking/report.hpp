// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "accelerate/tracking/run_log.hpp"

namespace accelerate::tracking {

/// What one metrics.jsonl says, and where it lies.
struct LoggedFile {
  std::string name{};  ///< of its folder, below the one that was asked for
  RunLogs logs{};
};

/// Every metrics.jsonl in a folder and below it, by name.
/// Throws Error (io) where there is no such folder; Error (data) where there is no such file in it.
[[nodiscard]] std::vector<LoggedFile> read_logged_files(const std::filesystem::path& folder);

/// A page of HTML that needs no other file and no network: for each run its configuration, its length, its curves with
/// throughput, what every number began, ended and went through, and its texts.
[[nodiscard]] std::string report_html(const std::vector<LoggedFile>& files);

}  // namespace accelerate::tracking

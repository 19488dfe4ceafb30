// SPDX-License-Identifier: Apache-2.0
// Limit of open files for the launcher and its workers.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string_view>

namespace accelerate::launch {

/// Number of descriptors: three per worker (stdout, stderr, connection to the PMIx server), optionally a log file, and
/// some for the launcher.
constexpr int64_t open_files_for(int64_t workers, bool with_logs = false) { return (with_logs ? 4 : 3) * workers + 48; }

/// Reports a call that returned no descriptor. Call it directly after the failed call, because it reads errno.
/// \throws LaunchError (1) always, with the remedy if the limit of open files is too low.
[[noreturn]] void fail_to_open(std::string_view what);

/// Raises the soft limit of open files to the hard limit if it is too low, during the lifetime of this object. Workers
/// get the original limit.
class FileLimitScope {
 public:
  /// \throws LaunchError (1) if the hard limit is too low for this number of workers.
  explicit FileLimitScope(int64_t workers, bool with_logs = false);
  ~FileLimitScope();
  FileLimitScope(const FileLimitScope&) = delete;
  FileLimitScope& operator=(const FileLimitScope&) = delete;

  [[nodiscard]] const rlimit& before() const noexcept { return before_; }

 private:
  rlimit before_{};
};

}  // namespace accelerate::launch

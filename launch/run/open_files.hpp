// SPDX-License-Identifier: Apache-2.0
// As many open files as the launcher needs for its workers.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string_view>

namespace accelerate::launch {

/// Three of a worker (its stdout, its stderr, its connection to the PMIx server), a log file where it has one, and some
/// of our own.
constexpr int64_t open_files_for(int64_t workers, bool with_logs = false) { return (with_logs ? 4 : 3) * workers + 48; }

/// Reports a call that returned no descriptor. Call it directly after the failed call, because it reads errno.
/// \throws LaunchError (1) always, with the remedy if the limit of open files is too low.
[[noreturn]] void fail_to_open(std::string_view what);

/// Where the soft limit of open files is too low it is raised to the hard one, for this process and while this lives:
/// workers get the limit that was.
class OpenFiles {
 public:
  /// \throws LaunchError (1) if the hard limit is too low for this number of workers.
  explicit OpenFiles(int64_t workers, bool with_logs = false);
  ~OpenFiles();
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

  [[nodiscard]] const rlimit& before() const noexcept { return before_; }

 private:
  rlimit before_{};
};

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "launch/run/file_limit.hpp"

#include <cerrno>
#include <cstring>

#include "launch/plan/error.hpp"

namespace accelerate::launch {

void fail_to_open(std::string_view what) {
  const int error = errno;
  rlimit limit{};
  if (error != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    fail(ErrorKind::io, "{} failed: {}", what, std::strerror(error));
  }
  fail(ErrorKind::environment,
       "{} failed: a process here may have {} open files, one rank needs {}; raise the limit "
       "(ulimit -n)",
       what, limit.rlim_cur, open_files_for(1));
}

FileLimitScope::FileLimitScope(int64_t workers, bool with_logs) {
  getrlimit(RLIMIT_NOFILE, &before_);
  const auto needed = static_cast<rlim_t>(open_files_for(workers, with_logs));
  if (before_.rlim_max < needed) {
    fail(ErrorKind::environment,
         "{} ranks need {} open files in the launcher, the limit is {}; start fewer, or raise the hard limit (ulimit "
         "-Hn)",
         workers, needed, before_.rlim_max);
  }
  if (before_.rlim_cur >= needed) return;
  const rlimit raised{.rlim_cur = before_.rlim_max, .rlim_max = before_.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
}

FileLimitScope::~FileLimitScope() { setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace accelerate::launch

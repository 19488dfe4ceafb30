// SPDX-License-Identifier: Apache-2.0
#include "launch/run/open_files.hpp"

#include "launch/plan/error.hpp"

namespace accelerate::launch {

OpenFiles::OpenFiles(int64_t workers, bool with_logs) {
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

OpenFiles::~OpenFiles() { setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace accelerate::launch

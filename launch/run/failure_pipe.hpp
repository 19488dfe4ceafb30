// SPDX-License-Identifier: Apache-2.0
// Reports a failure through a pipe at once, before the other ranks are stopped: one line of text.
#pragma once

#include <optional>
#include <string>

#include "launch/run/failure_report.hpp"

namespace accelerate::launch {

struct FailureNotice {
  int exit_code = 1;
  bool was_signalled = false;  ///< a signal had requested the end
  std::string text{};          ///< "worker 3, signal 9 (killed)"

  bool operator==(const FailureNotice&) const = default;
};

/// Writes the failure to the pipe. Does nothing if fd is -1.
void write_failure_notice(const Failure& failure, bool was_signalled, int fd);

/// Reads one failure from a non-blocking pipe. Returns nothing if the pipe is empty.
std::optional<FailureNotice> read_failure_notice(int fd);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Reports a failure through a pipe at once, before the other ranks are stopped: one line of text.
#pragma once

#include <optional>
#include <string>

#include "launch/run/failure_report.hpp"

namespace accelerate::launch {

struct Announcement {
  int exit_code = 1;
  bool was_told = false;  ///< a signal had requested the end
  std::string text{};     ///< "worker 3, signal 9 (killed)"

  bool operator==(const Announcement&) const = default;
};

/// Writes the failure to the pipe. Does nothing if fd is -1.
void announce(const Failure& failure, bool was_told, int fd);

/// Reads one failure from a non-blocking pipe. Returns nothing if the pipe is empty.
std::optional<Announcement> read_announcement(int fd);

}  // namespace accelerate::launch

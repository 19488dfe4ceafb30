// SPDX-License-Identifier: Apache-2.0
// A failure, said at once to whoever must know before the other ranks are stopped: a line through a pipe.
#pragma once

#include <optional>
#include <string>

#include "launch/run/failure_report.hpp"

namespace accelerate::launch {

struct Announcement {
  int exit_code = 1;
  bool was_told = false;  ///< a signal had asked for the end
  std::string text{};     ///< "worker 3, signal 9 (killed)"

  bool operator==(const Announcement&) const = default;
};

/// Writes it to the pipe; nothing where fd is -1.
void announce(const Failure& failure, bool was_told, int fd);

/// What waits in a non-blocking pipe; nothing where nothing does.
std::optional<Announcement> read_announcement(int fd);

}  // namespace accelerate::launch

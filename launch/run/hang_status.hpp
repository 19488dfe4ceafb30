// SPDX-License-Identifier: Apache-2.0
// Hang status of one machine, which its guardian sends to the process that combines all machines. The format is lines
// of text that end with an empty line.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/run/hang_report.hpp"

namespace accelerate::launch {

/// The running ranks of the machine make no progress, or (without ranks) make progress again.
struct HangStatus {
  bool is_still = false;
  std::vector<StalledRank>
      ranks{};  ///< rank, beats, current operation; no process id, which is meaningless on other machines
};

std::string message_of(const HangStatus& stillness);
/// Returns nothing if the text was not written by message_of().
std::optional<HangStatus> parse_hang_status(std::string_view message);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Lists of hosts: a file, or a word of the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::launch {

struct HostSlots {
  std::string name{};
  int64_t slots = 0;  ///< ranks that it takes; 0: not said

  bool operator==(const HostSlots&) const = default;
};

/// Parses a host file with one host per line: "gpu-a slots=4", "gpu-a:4" or "user@gpu-a". A `#` starts a comment.
///
/// A host on several lines has the sum of their slots. A repeated line without slots counts as one slot, so that a
/// Torque `$PBS_NODEFILE` of "a", "a", "a", "b" means 3 and 1 ranks. The key `max_slots` is accepted and ignored.
///
/// \param path  Name of the file for error messages.
/// \throws LaunchError (exit code 2) with the line number, for a line of another form and for an unknown key.
std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& path);

/// "~" and "~/hostfile" in the user's home folder, as a shell has them; other paths as they are. Pure.
///
/// home   HOME; unset: nothing is replaced
std::string with_home(const std::string& path, const std::optional<std::string>& home);

/// The file, whose path may begin with "~/": config files are written by hand, too.
/// Throws LaunchError (1) when it cannot be read.
std::vector<HostSlots> read_hostfile(const std::string& name);

/// The name or address means on each host the host itself.
bool says_loopback(const std::string& host);

/// Parses "gpu-a:4,gpu-b:4,[fd77::1]:4". A repeated host has the sum of its slots, as in a host file.
///
/// \throws LaunchError (exit code 2), also for an IPv6 address without brackets.
std::vector<HostSlots> parse_hosts(std::string_view list);

/// Ranks of each host, in order; hosts that get none are left out of both.
///
/// processes   of the whole job; 0: as many as the hosts take
/// returns     empty where nothing says how many: each host decides by what it has
/// Throws LaunchError (2): more ranks than slots, or ranks that do not divide evenly among hosts without slots.
std::vector<int64_t> fill_hosts(std::vector<HostSlots>& hosts, int64_t processes);

}  // namespace accelerate::launch

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

/// Lines like "gpu-a slots=4", "gpu-a:4" or "user@gpu-a", as Open MPI and DeepSpeed write them; # begins a comment, and
/// max_slots and the like are passed over. A host that stands there twice has the slots of both.
///
/// path   for the errors
/// Throws LaunchError (2) with the line's number.
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

/// "gpu-a:4,gpu-b:4,[fd77::1]:4". Throws LaunchError (2), also for an address of IPv6 without brackets.
std::vector<HostSlots> parse_hosts(std::string_view list);

/// Ranks of each host, in order; hosts that get none are left out of both.
///
/// processes   of the whole job; 0: as many as the hosts take
/// returns     empty where nothing says how many: each host decides by what it has
/// Throws LaunchError (2): more ranks than slots, or ranks that do not divide evenly among hosts without slots.
std::vector<int64_t> fill_hosts(std::vector<HostSlots>& hosts, int64_t processes);

}  // namespace accelerate::launch

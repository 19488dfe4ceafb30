// SPDX-License-Identifier: Apache-2.0
// Lists of hosts from a file or the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::launch {

struct HostSlots {
  std::string name{};
  int64_t slots = 0;  ///< maximum number of ranks; 0 if unknown

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

/// Replaces "~" and a leading "~/" by the home folder, as a shell does; other paths are unchanged. Pure function.
///
/// \param home  Value of HOME. If unset, nothing is replaced.
std::string with_home(const std::string& path, const std::optional<std::string>& home);

/// Reads a host file. The path may begin with "~/", because users also write config files by hand.
/// \throws LaunchError (exit code 1) if the file cannot be read.
std::vector<HostSlots> read_hostfile(const std::string& name);

/// True for a name or address that refers to the local host on every host.
bool is_loopback_name(const std::string& host);

/// Parses "gpu-a:4,gpu-b:4,[fd77::1]:4". A repeated host has the sum of its slots, as in a host file.
///
/// \throws LaunchError (exit code 2), also for an IPv6 address without brackets.
std::vector<HostSlots> parse_hosts(std::string_view list);

/// Distributes the ranks among the hosts in order. Hosts without ranks are removed from the list and the result.
///
/// \param processes  Number of ranks of the whole job. If 0, the sum of the slots.
/// \returns the number of ranks per host. Empty if neither processes nor slots determine it; each host then decides.
/// \throws LaunchError (exit code 2) if there are more ranks than slots, or if the ranks do not divide evenly among
///         hosts without slots.
std::vector<int64_t> fill_hosts(std::vector<HostSlots>& hosts, int64_t processes);

}  // namespace accelerate::launch

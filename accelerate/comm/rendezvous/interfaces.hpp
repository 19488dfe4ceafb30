// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this machine, and the selection of those that a job uses. Private.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::comm {

/// One IP address of an interface that is up.
struct Interface {
  std::string name{};
  std::string address{};
  bool loopback = false;
};

/// Returns the interfaces in the system's order, one row per address.
std::vector<Interface> interfaces();

/// Pure function.
/// \param names  Interface names separated by commas: GLOO_SOCKET_IFNAME.
/// \returns the names as a list; empty for "".
/// \throws Error (environment) with the available interfaces for an unknown name.
std::vector<std::string> interfaces_named(std::string_view names, std::span<const Interface> here,
                                          const RankContext& place);

/// Returns the address under which other machines reach this one: the first of the host name's addresses, then of the
/// interfaces' addresses, that belongs to an interface and is neither loopback nor link-local; IPv4 before IPv6. Debian
/// maps the host name to 127.0.1.1, which other machines would interpret as themselves. Pure function.
/// \throws Error (environment), naming MASTER_ADDR, if there is no such address.
std::string address_for_others(std::span<const std::string> of_own_name, std::span<const Interface> here,
                               const RankContext& place);

/// Returns the numeric addresses of the machine's host name; empty if it is not resolved by the deadline.
std::vector<std::string> addresses_of_own_name(std::chrono::steady_clock::time_point deadline);

}  // namespace accelerate::comm

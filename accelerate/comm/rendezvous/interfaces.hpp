// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this machine, and which of them a job takes. Private.
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

/// In the system's order; an interface with several addresses has several rows.
std::vector<Interface> interfaces();

/// names   of interfaces, with commas between them: GLOO_SOCKET_IFNAME
/// returns the same as a list, nothing for ""
/// Pure. Throws Error (environment) with the interfaces there are for a name that is none of them.
std::vector<std::string> interfaces_named(std::string_view names, std::span<const Interface> here, const Place& place);

/// The address under which other machines find this one: of those that the machine's own name stands for, else of the
/// interfaces, the first that is an interface's and neither loopback nor link-local; IPv4 before IPv6.
///
/// Debian gives the machine's name the address 127.0.1.1, which other machines take for themselves.
/// Pure. Throws Error (environment), naming MASTER_ADDR, where there is none.
std::string address_for_others(std::span<const std::string> of_own_name, std::span<const Interface> here,
                               const Place& place);

/// What the machine's own name stands for, numeric addresses; empty where it cannot be resolved by the deadline.
std::vector<std::string> addresses_of_own_name(std::chrono::steady_clock::time_point deadline);

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/network.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "accelerate/base/log.hpp"

namespace accelerate::comm {
namespace {

bool set_by_user() {
  return std::getenv("OMPI_MCA_btl_tcp_if_include") != nullptr || std::getenv("OMPI_MCA_btl_tcp_if_exclude") != nullptr;
}

/// MPI does not need MASTER_ADDR, so an unresolvable MASTER_ADDR is not an error here.
std::vector<std::string> own_addresses(const env::ProcessEnv& process, Deadline deadline) {
  auto addresses = addresses_of_own_name(deadline);
  if (!process.master_addr) return addresses;
  try {
    addresses.insert(addresses.begin(), local_address_towards({*process.master_addr, 1}, {}, deadline));
  } catch (const Error& error) {
    base::log(base::LogLevel::debug, {}, "connect: {}", error.what());
  }
  return addresses;
}

}  // namespace

std::optional<std::string> network_between_machines(std::span<const std::string> addresses,
                                                    std::span<const Interface> here) {
  std::set<std::string> names;
  for (const auto& each : here) {
    if (!each.loopback) names.insert(each.name);
  }
  if (names.size() < 2) return std::nullopt;
  for (const auto& address : addresses) {
    const auto found = std::find_if(here.begin(), here.end(),
                                    [&](const Interface& each) { return !each.loopback && each.address == address; });
    if (found != here.end()) return found->name;
  }
  return std::nullopt;
}

void choose_network(const env::ProcessEnv& process, Deadline deadline) {
  if (!process.spans_machines() || set_by_user()) return;
  if (const auto name = network_between_machines(own_addresses(process, deadline), interfaces())) {
    ::setenv("OMPI_MCA_btl_tcp_if_include", name->c_str(), 0);
    base::log(base::LogLevel::debug, {}, "connect: MPI uses the network of {}", *name);
  }
}

}  // namespace accelerate::comm

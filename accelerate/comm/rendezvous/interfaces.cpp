// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/rendezvous/interfaces.hpp"

#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>

#include "accelerate/comm/rendezvous/sockets.hpp"

namespace accelerate::comm {
namespace {

bool is_reachable_from_other_hosts(const Interface& each) {
  return !each.loopback && !each.address.starts_with("fe80:");
}

std::string names_of(std::span<const Interface> here) {
  std::vector<std::string> names;
  for (const auto& each : here) {
    if (std::find(names.begin(), names.end(), each.name) == names.end()) names.push_back(each.name);
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<Interface> interfaces() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, &freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const bool v6 = each->ifa_addr->sa_family == AF_INET6;
    auto address = numeric_address(each->ifa_addr, v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    if (address.empty()) continue;
    result.push_back({each->ifa_name, std::move(address), (each->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return result;
}

std::vector<std::string> interfaces_named(std::string_view names, std::span<const Interface> here,
                                          const RankContext& place) {
  std::vector<std::string> result;
  for (std::string_view rest = names; !rest.empty();) {
    const auto comma = std::min(rest.find(','), rest.size());
    const auto name = rest.substr(0, comma);
    if (std::none_of(here.begin(), here.end(), [&](const Interface& each) { return each.name == name; })) {
      base::fail(
          ErrorKind::environment, place, "connect",
          "GLOO_SOCKET_IFNAME is '{}', and '{}' is not a network interface of this machine that is up and has an "
          "address; there are: {}",
          names, name, names_of(here));
    }
    result.emplace_back(name);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return result;
}

std::string address_for_others(std::span<const std::string> of_own_name, std::span<const Interface> here,
                               const RankContext& place) {
  std::vector<Interface> fit;
  std::copy_if(here.begin(), here.end(), std::back_inserter(fit), is_reachable_from_other_hosts);
  if (fit.empty()) {
    base::fail(ErrorKind::environment, place, "connect",
               "MASTER_ADDR is not set, and no interface of rank 0's machine has an address for other machines ({}); "
               "set MASTER_ADDR to the address at which they reach it",
               names_of(here));
  }
  std::stable_partition(fit.begin(), fit.end(), [](const Interface& each) { return !is_v6(each.address); });
  const auto named = std::find_if(fit.begin(), fit.end(), [&](const Interface& each) {
    return std::find(of_own_name.begin(), of_own_name.end(), each.address) != of_own_name.end();
  });
  return (named == fit.end() ? fit.front() : *named).address;
}

std::vector<std::string> addresses_of_own_name(Deadline deadline) {
  std::vector<std::string> result;
  try {
    const Addresses addresses = resolve_endpoint({base::host_name(), 0}, {}, deadline);
    for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
      result.push_back(numeric_address(each->ai_addr, each->ai_addrlen));
    }
  } catch (const Error&) {  // without a host name, the interfaces are still usable
  }
  return result;
}

}  // namespace accelerate::comm

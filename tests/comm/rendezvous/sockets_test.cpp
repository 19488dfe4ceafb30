// SPDX-License-Identifier: Apache-2.0
// Addresses of this machine, listening addresses, and reachable addresses.
#include "accelerate/comm/rendezvous/sockets.hpp"

#include <cerrno>

#include "accelerate/comm/rendezvous/interfaces.hpp"
#include "tests/testing.hpp"

namespace {

using namespace accelerate::comm;
using namespace std::chrono_literals;
using accelerate::RankContext;

const RankContext kRankZero{.rank = 0, .world_size = 2, .host = "gpu-a"};

bool listens(const Endpoint& endpoint) {
  return is_port_open(resolve_endpoint(endpoint, kRankZero), std::chrono::steady_clock::now() + 5s);
}

const Interface kLoopback{.name = "lo", .address = "127.0.0.1", .loopback = true};
const Interface kLinkLocal{.name = "eth0", .address = "fe80::1%eth0"};
const Interface kV6{.name = "eth0", .address = "fd00::2"};
const Interface kEthernet{.name = "eth0", .address = "192.0.2.2"};
const Interface kFabric{.name = "ib0", .address = "198.51.100.7"};

std::string for_others(const std::vector<std::string>& of_own_name, const std::vector<Interface>& here) {
  return address_for_others(of_own_name, here, kRankZero);
}

}  // namespace

TEST_CASE("a socket listens only on its address, and on a free port if none is requested") {
  const FileDescriptor socket = listen_on({"127.0.0.1", 0}, kRankZero);
  CHECK(port_of(socket) > 0);
  CHECK(host_of(socket) == "127.0.0.1");
  CHECK(listens({"127.0.0.1", port_of(socket)}));
  CHECK_FALSE(listens({"127.0.0.2", port_of(socket)}));
}

TEST_CASE("an endpoint has a text") {
  CHECK(text({"10.0.0.1", 29500}) == "10.0.0.1:29500");
  CHECK(text({"::1", 29500}) == "[::1]:29500");
}

TEST_CASE("the reason why a socket cannot listen is reported") {
  const auto fails_with = [](int error) { fail_to_listen({"10.0.0.1", 80}, kRankZero, error); };
  CHECK_THROWS_WITH(fails_with(EACCES),
                    "[rank 0 of 2, gpu-a] connect: cannot listen on 10.0.0.1:80: Permission denied");
  CHECK_THROWS_WITH(fails_with(EADDRINUSE),
                    "[rank 0 of 2, gpu-a] connect: 10.0.0.1:80 is in use, perhaps by another job; give each job its "
                    "own port (MASTER_PORT, --main_process_port)");
  CHECK_THROWS_WITH(fails_with(EADDRNOTAVAIL),
                    "[rank 0 of 2, gpu-a] connect: MASTER_ADDR is 10.0.0.1, which is not an address of this machine; "
                    "it must name the machine of rank 0");
  // IPv6 link-local addresses need an interface; without IPv6 the system reports another error.
  try {
    static_cast<void>(listen_on({"fe80::1", 0}, kRankZero));
    FAIL("no error");
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::io);
    CHECK(std::string(error.what()).find("connect: cannot listen on [fe80::1]:0: ") != std::string::npos);
  }
}

TEST_CASE("an address without an interface is reported") {
  // The broadcast address is reachable only for sockets with SO_BROADCAST.
  CHECK_THROWS_WITH(local_address_towards({"255.255.255.255", 1}, kRankZero),
                    "[rank 0 of 2, gpu-a] connect: no network interface of this machine reaches 255.255.255.255");
  CHECK(local_address_towards({"127.0.0.1", 1}, kRankZero) == "127.0.0.1");
}

TEST_CASE("this machine has a loopback interface") {
  const auto here = interfaces();
  CHECK(std::any_of(here.begin(), here.end(),
                    [](const Interface& each) { return each.loopback && each.address == "127.0.0.1"; }));
}

TEST_CASE("GLOO_SOCKET_IFNAME must name interfaces of this machine") {
  const std::vector<Interface> here{kLoopback, kEthernet, kV6, kFabric};
  CHECK(interfaces_named("", here, kRankZero).empty());
  CHECK((interfaces_named("ib0", here, kRankZero) == std::vector<std::string>{"ib0"}));
  CHECK((interfaces_named("eth0,ib0", here, kRankZero) == std::vector<std::string>{"eth0", "ib0"}));
  CHECK_THROWS_WITH(interfaces_named("eth0,ib7", here, kRankZero),
                    "[rank 0 of 2, gpu-a] connect: GLOO_SOCKET_IFNAME is 'eth0,ib7', and 'ib7' is not a network "
                    "interface of this machine that is up and has an address; there are: lo, eth0, ib0");
  CHECK_THROWS_WITH(interfaces_named("lo", {}, kRankZero),
                    "[rank 0 of 2, gpu-a] connect: GLOO_SOCKET_IFNAME is 'lo', and 'lo' is not a network interface of "
                    "this machine that is up and has an address; there are: none");
}

TEST_CASE("other machines never get a loopback address: the host name's address, else an interface's") {
  const std::vector<Interface> here{kLoopback, kLinkLocal, kV6, kEthernet, kFabric};
  CHECK(for_others({"127.0.1.1"}, here) == "192.0.2.2");
  CHECK(for_others({"127.0.1.1", "198.51.100.7"}, here) == "198.51.100.7");
  CHECK(for_others({"203.0.113.9"}, here) == "192.0.2.2");
  CHECK(for_others({}, {kLoopback, kLinkLocal, kV6}) == "fd00::2");
  CHECK_THROWS_WITH(for_others({"127.0.1.1"}, {kLoopback, kLinkLocal}),
                    "[rank 0 of 2, gpu-a] connect: MASTER_ADDR is not set, and no interface of rank 0's machine has an "
                    "address for other machines (lo, eth0); set MASTER_ADDR to the address at which they reach it");
}

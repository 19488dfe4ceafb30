// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/network.hpp"

#include "tests/testing.hpp"

using accelerate::comm::Interface;
using accelerate::comm::network_between_machines;
using Names = std::vector<std::string>;

namespace {

const std::vector<Interface> kTwoNetworks{
    {"lo", "127.0.0.1", true}, {"lan0", "10.99.0.1", false}, {"eth0", "10.77.0.1", false}, {"eth0", "fe80::1", false}};

}  // namespace

TEST_CASE("MPI uses the network of the first address that belongs to an interface") {
  CHECK(network_between_machines(Names{"10.77.0.1", "10.99.0.1"}, kTwoNetworks) == "eth0");
  CHECK(network_between_machines(Names{"192.0.2.7", "10.99.0.1"}, kTwoNetworks) == "lan0");
}

TEST_CASE("MPI's network is not set if no address names one, or if there is only one") {
  CHECK_FALSE(network_between_machines(Names{}, kTwoNetworks));
  CHECK_FALSE(network_between_machines(Names{"127.0.0.1", "127.0.1.1"}, kTwoNetworks));
  const std::vector<Interface> one{kTwoNetworks[0], kTwoNetworks[2], kTwoNetworks[3]};
  CHECK_FALSE(network_between_machines(Names{"10.77.0.1"}, one));
}

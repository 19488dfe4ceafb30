// SPDX-License-Identifier: Apache-2.0
#include "launch/run/port.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "launch/plan/error.hpp"
#include "tests/launch/no_descriptors.hpp"

using accelerate::launch::LaunchError;
using accelerate::launch::ReservedPort;

namespace {

/// A socket on 127.0.0.1:port, or -1 if it cannot be bound (and listen).
int take(int64_t port, bool reuse, bool listening) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = reuse ? 1 : 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && (!listening || listen(fd, 1) == 0))
    return fd;
  close(fd);
  return -1;
}

}  // namespace

TEST_CASE("a free port is reserved against others and open to rank 0's listener") {
  const ReservedPort port(0);
  CHECK(port.number() > 0);
  CHECK(take(port.number(), false, false) == -1);
  const int listener = take(port.number(), true, true);
  CHECK(listener >= 0);
  close(listener);
}

TEST_CASE("a port that another launcher reserved is in use, although nothing listens there yet") {
  const ReservedPort first(0);
  CHECK_THROWS_AS(ReservedPort second(first.number()), LaunchError);
}

TEST_CASE("a port with lingering connections of a finished job can be reserved") {
  const int listener = take(0, true, true);
  sockaddr_in address{};
  socklen_t length = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(connect(client, reinterpret_cast<sockaddr*>(&address), length) == 0);
  const int served = accept(listener, nullptr, nullptr);
  close(served);  // the side that closes first leaves the port in TIME_WAIT
  close(client);
  close(listener);
  const int64_t port = ntohs(address.sin_port);
  CHECK(take(port, false, false) == -1);
  CHECK(ReservedPort(port).number() == port);
}

TEST_CASE("a launcher that does not use port 29500 reports the other port") {
  CHECK(accelerate::launch::port_moved(40123) == "port 29500 is in use, perhaps by another job; this one uses 40123");
}

TEST_CASE("two launchers get different free ports") { CHECK(ReservedPort(0).number() != ReservedPort(0).number()); }

TEST_CASE("a requested port in use is refused with the remedy") {
  ReservedPort free(0);
  const int listener = take(free.number(), true, true);
  REQUIRE(listener >= 0);
  std::string message;
  try {
    const ReservedPort second(free.number());
  } catch (const LaunchError& error) {
    CHECK(error.exit_code() == 1);
    message = error.what();
  }
  CHECK(message == "accelerate_launch: --main_process_port " + std::to_string(free.number()) +
                       " is in use on 127.0.0.1 by plain_tests (pid " + std::to_string(getpid()) +
                       "); give another, or 0 for a free one");
  close(listener);
}

TEST_CASE("a socket that cannot be opened is reported with the limit") {
  std::string message;
  try {
    const testing::NoDescriptors none;
    const ReservedPort port({});
  } catch (const LaunchError& error) {
    message = error.what();
  }
  CHECK(message ==
        "accelerate_launch: socket failed: a process here may have 0 open files, one rank needs 51; raise the limit "
        "(ulimit -n)");
}

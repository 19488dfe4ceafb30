// SPDX-License-Identifier: Apache-2.0
// Launchers as threads of this process.
#include "launch/rendezvous/rendezvous.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "launch/plan/error.hpp"
#include "launch/rendezvous/socket.hpp"
#include "launch/run/port.hpp"

using namespace accelerate::launch;
using namespace std::chrono_literals;

namespace {

RendezvousOptions invitation(int64_t port, int64_t machine, int64_t machines, std::chrono::milliseconds timeout = 30s) {
  return {.address = "127.0.0.1",
          .port = port,
          .own = {.version = "1",
                  .host = "host" + std::to_string(machine),
                  .machine = machine,
                  .machines = machines,
                  .processes = 2 * machines,
                  .ranks = "2,2"},
          .timeout = timeout};
}

int64_t free_port() { return ReservedPort(0).number(); }

/// Result or error text of rendezvous().
std::future<std::string> meets(const RendezvousOptions& invitation) {
  return std::async(std::launch::async, [invitation] {
    try {
      const auto gathered = rendezvous(invitation);
      return fmt::format("{} members, port {}, id {}", gathered.members.size(), gathered.welcome.port,
                         gathered.welcome.job_id);
    } catch (const LaunchError& error) {
      return std::string(error.what());
    }
  });
}

/// Connects to the port as soon as a process listens.
accelerate::base::FileDescriptor connected(int64_t port) {
  auto address = addresses_of("127.0.0.1").at(0);
  address.set_port(port);
  accelerate::base::FileDescriptor connection;
  for (int i = 0; i < 1000 && connect_to(address, connection) != 0; ++i) std::this_thread::sleep_for(5ms);
  return connection;
}

/// Accepts the next connection.
accelerate::base::FileDescriptor caller_of(int listener) {
  accelerate::base::FileDescriptor connection;
  while (!connection) connection = accept_from(listener);
  return connection;
}

}  // namespace

TEST_CASE("three machines join in any order and share a job id and a port") {
  const int64_t port = free_port();
  auto two = meets(invitation(port, 2, 3));
  auto zero = meets(invitation(port, 0, 3));
  auto one = meets(invitation(port, 1, 3));
  const std::string of_zero = zero.get();
  CHECK(of_zero.starts_with("2 members, port "));
  CHECK(one.get() == "1 members" + of_zero.substr(9));
  CHECK(two.get() == "1 members" + of_zero.substr(9));
  CHECK(of_zero.size() >= std::string("2 members, port 1, id ").size() + 32);
}

TEST_CASE("a given job id is kept") {
  const int64_t port = free_port();
  auto given = [&](int64_t machine) {
    auto each = invitation(port, machine, 2);
    each.own.job_id = "ours";
    return each;
  };
  auto zero = meets(given(0));
  auto one = meets(given(1));
  CHECK(zero.get().ends_with("id ours"));
  CHECK(one.get().ends_with("id ours"));
}

TEST_CASE("all machines that joined name the missing machine") {
  const int64_t port = free_port();
  auto zero = meets(invitation(port, 0, 4, 1500ms));
  auto two = meets(invitation(port, 2, 4, 1500ms));
  const std::string expected = "accelerate_launch: machines 1, 3 did not join at 127.0.0.1:" + std::to_string(port) +
                               " within 1.5 s; start accelerate_launch there, or check the network";
  CHECK(zero.get() == expected);
  CHECK(two.get() == expected);
}

TEST_CASE("a machine 0 without a response is named with the time waited") {
  const int64_t port = free_port();
  CHECK(meets(invitation(port, 1, 2, 300ms)).get() ==
        "accelerate_launch: machine 0 at 127.0.0.1:" + std::to_string(port) +
            " does not answer within 0.3 s: Connection refused; start accelerate_launch there, or check the network");
}

TEST_CASE("two machines with different num_processes both report it") {
  const int64_t port = free_port();
  auto other = invitation(port, 1, 2);
  other.own.processes = 6;
  auto zero = meets(invitation(port, 0, 2));
  auto one = meets(other);
  const std::string expected =
      "accelerate_launch: machine 1 (host1) has num_processes 6, machine 0 (host0) has 4; they must be the same";
  CHECK(zero.get() == expected);
  CHECK(one.get() == expected);
}

TEST_CASE("two machines with the same machine rank report it") {
  const int64_t port = free_port();
  auto again = invitation(port, 1, 3);
  again.own.host = "twin";
  auto zero = meets(invitation(port, 0, 3));
  auto one = meets(invitation(port, 1, 3));
  std::this_thread::sleep_for(300ms);
  auto twin = meets(again);
  const std::string message = zero.get();
  CHECK((message == "accelerate_launch: machine 1 (twin) tried to join, but host1 is already machine 1" ||
         message == "accelerate_launch: machine 1 (host1) tried to join, but twin is already machine 1"));
  CHECK(one.get() == message);
  CHECK(twin.get() == message);
}

TEST_CASE("junk on the port does not affect the rendezvous") {
  const int64_t port = free_port();
  auto zero = meets(invitation(port, 0, 2));
  const auto half_open = connected(port);
  const auto http = connected(port);
  const auto random = connected(port);
  const auto stranger = connected(port);
  const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n\n\n";
  send(http.get(), request.data(), request.size(), MSG_NOSIGNAL);
  const std::string noise(100'000, '\xa5');
  send(random.get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  auto hello = invitation(port, 1, 2).own;
  hello.job_id = "theirs";
  const std::string other_job = message_of(hello);
  send(stranger.get(), other_job.data(), other_job.size(), MSG_NOSIGNAL);
  for (int i = 0; i < 300; ++i) connected(port);
  auto one = meets(invitation(port, 1, 2));
  CHECK(one.get().starts_with("1 members"));
  CHECK(zero.get().starts_with("1 members"));
}

TEST_CASE("an incompatible process on the port is reported") {
  const int64_t port = free_port();
  const auto listener = listen_on("127.0.0.1", port);
  auto one = meets(invitation(port, 1, 2));
  auto connection = caller_of(listener.get());
  const std::string banner = "SSH-2.0-OpenSSH_9.2\r\n\n\n";
  send(connection.get(), banner.data(), banner.size(), MSG_NOSIGNAL);
  const std::string place = "accelerate_launch: machine 0 at 127.0.0.1:" + std::to_string(port);
  CHECK(one.get() == place + " is not accelerate_launch; does another program use the port?");
  auto again = meets(invitation(port, 1, 2));
  connection.reset();
  connection = caller_of(listener.get());
  connection.reset();
  CHECK(again.get() ==
        place + " closed the connection before all machines had joined: it ended, or it belongs to another job");
}

TEST_CASE("another program on the port is reported at once") {
  const int64_t port = free_port();
  const auto listener = listen_on("127.0.0.1", port);
  auto one = meets(invitation(port, 1, 2));
  auto connection = caller_of(listener.get());
  send(connection.get(), "220 x", 5, MSG_NOSIGNAL);         // an unfinished line
  REQUIRE(one.wait_for(15s) == std::future_status::ready);  // of 30 s and 5 s for machine 0's verdict
  CHECK(one.get() == "accelerate_launch: machine 0 at 127.0.0.1:" + std::to_string(port) +
                         " is not accelerate_launch; does another program use the port?");
}

TEST_CASE("a process that takes the port late without a response causes one timeout") {
  const int64_t port = free_port();
  const auto begun = std::chrono::steady_clock::now();
  auto one = meets(invitation(port, 1, 2, 3s));
  std::this_thread::sleep_for(2700ms);
  const auto listener = listen_on("127.0.0.1", port);
  CHECK(one.get() == "accelerate_launch: machine 0 at 127.0.0.1:" + std::to_string(port) +
                         " did not confirm within 3 s that all machines joined");
  CHECK(std::chrono::steady_clock::now() - begun < 9800ms);  // 3 s and 5 s for machine 0's verdict
}

TEST_CASE("machine 0 refuses an address that is not its own") {
  auto elsewhere = invitation(free_port(), 0, 2);
  elsewhere.address = "192.0.2.1";
  CHECK(meets(elsewhere).get() ==
        "accelerate_launch: main_process_ip 192.0.2.1 is not an address of this machine, which is machine_rank 0; set "
        "the address of this one, or give it another machine_rank");
  elsewhere.address = "no such host";
  CHECK(meets(elsewhere).get().starts_with(
      "accelerate_launch: main_process_ip no such host cannot be resolved on this machine: "));
}

TEST_CASE("a port in use is refused with the process that uses it") {
  const int64_t port = free_port();
  const auto listener = listen_on("127.0.0.1", port);
  CHECK(meets(invitation(port, 0, 2)).get() == "accelerate_launch: main_process_port " + std::to_string(port) +
                                                   " is in use on 127.0.0.1 by plain_tests (pid " +
                                                   std::to_string(getpid()) +
                                                   "); give another, the same on all machines");
}

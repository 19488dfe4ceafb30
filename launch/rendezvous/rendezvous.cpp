// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous/rendezvous.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "launch/plan/error.hpp"
#include "launch/rendezvous/rendezvous_host.hpp"
#include "launch/rendezvous/socket.hpp"

namespace accelerate::launch {
namespace {

using Clock = std::chrono::steady_clock;

std::string host_address_text(const RendezvousOptions& invitation) {
  return fmt::format("machine 0 at {}:{}", invitation.address, invitation.port);
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

/// Retries, because machine 0 may start later than this machine.
base::FileDescriptor connect(const RendezvousOptions& invitation, Clock::time_point until) {
  auto addresses = addresses_of(invitation.address);
  base::FileDescriptor connection;
  int error = ETIMEDOUT;
  do {
    for (auto& address : addresses) {
      address.set_port(invitation.port);
      error = connect_to(address, connection);
      if (error == 0) return connection;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < until);
  fail(ErrorKind::peer, "{} does not answer within {}: {}; start accelerate_launch there, or check the network",
       host_address_text(invitation), seconds(invitation.timeout), std::strerror(error));
}

/// Returns machine 0's reply, which arrives after all machines have joined.
std::string answer(const RendezvousOptions& invitation, RendezvousPeer& zero, Clock::time_point until) {
  std::array<char, 1024> bytes;
  while (true) {
    if (auto message = take_message(zero.received)) return *message;
    if (zero.received.size() > kMaxMessageBytes || !could_be_launcher_message(zero.received)) return zero.received;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd wait{.fd = zero.connection.get(), .events = POLLIN, .revents = 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(std::min<int64_t>(left, 60'000))) < 0) {
      fail(ErrorKind::peer, "{} did not confirm within {} that all machines joined", host_address_text(invitation),
           seconds(invitation.timeout));
    }
    if (wait.revents == 0) continue;
    const ssize_t count = read(zero.connection.get(), bytes.data(), bytes.size());
    if (count > 0) zero.received.append(bytes.data(), static_cast<size_t>(count));
    if (count == 0 || (count < 0 && errno != EAGAIN)) {
      fail(ErrorKind::peer,
           "{} closed the connection before all machines had joined: it ended, or it belongs to another job",
           host_address_text(invitation));
    }
  }
}

RendezvousResult join(const RendezvousOptions& invitation) {
  constexpr std::chrono::seconds for_its_verdict{
      5};  // machine 0 names the missing machines when its own timeout expires
  const auto until = Clock::now() + invitation.timeout;
  RendezvousResult gathered;
  auto& zero = gathered.members.emplace_back();
  zero.host = invitation.address;
  zero.connection = connect(invitation, until);
  const std::string hello = message_of(invitation.own);
  send(zero.connection.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
  const std::string message = answer(invitation, zero, until + for_its_verdict);
  if (const auto welcome = parse_join_reply(message)) {
    gathered.welcome = *welcome;
    return gathered;
  }
  if (const auto end = parse_job_failure(message)) fail(ErrorKind::peer, "{}", end->text);
  fail(ErrorKind::peer, "{} is not accelerate_launch; does another program use the port?",
       host_address_text(invitation));
}

}  // namespace

RendezvousResult rendezvous(const RendezvousOptions& invitation) {
  return invitation.own.machine == 0 ? host_rendezvous(invitation) : join(invitation);
}

}  // namespace accelerate::launch

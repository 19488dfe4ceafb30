// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/rendezvous/sockets.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "accelerate/comm/core/deadline_call.hpp"

namespace accelerate::comm {
namespace {

using Clock = std::chrono::steady_clock;

FileDescriptor open_socket(const addrinfo& address, int type) {
  return FileDescriptor(::socket(address.ai_family, type | SOCK_CLOEXEC, 0));
}

/// The family is 0 if the socket has no address.
sockaddr_storage own_address(const FileDescriptor& socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length);
  return own;
}

int connection_error(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

/// A blocking connect() would wait for minutes if the machine drops packets.
bool connects(const addrinfo& address, Deadline deadline) {
  const FileDescriptor socket = open_socket(address, SOCK_STREAM | SOCK_NONBLOCK);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  while (true) {
    const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd connected{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    const int ready = ::poll(&connected, 1, static_cast<int>(std::clamp<int64_t>(remaining, 0, 60'000)));
    if (ready > 0) return connection_error(socket.get()) == 0;
    if (remaining <= 0 || (ready < 0 && errno != EINTR)) return false;
  }
}

/// Result of getaddrinfo: addresses or an error.
struct Resolved {
  int code = 0;
  Addresses addresses{nullptr, &freeaddrinfo};
};

Resolved query_addresses(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  return {code, {code == 0 ? found : nullptr, &freeaddrinfo}};
}

}  // namespace

std::string text(const Endpoint& endpoint) {
  return fmt::format(fmt::runtime(is_v6(endpoint.host) ? "[{}]:{}" : "{}:{}"), endpoint.host, endpoint.port);
}

std::string numeric_address(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> name{};
  const bool ip = address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
  if (!ip || getnameinfo(address, length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return name.data();
}

Addresses resolve_endpoint(const Endpoint& endpoint, const RankContext& place, Deadline deadline) {
  const auto begun = Clock::now();
  // Resolution through an unresponsive name server takes half a minute or more and cannot be interrupted.
  std::optional<Resolved> resolved =
      deadline == Deadline::max() ? query_addresses(endpoint)
                                  : run_with_deadline(deadline, [endpoint] { return query_addresses(endpoint); });
  if (resolved && resolved->code == 0) return std::move(resolved->addresses);
  const std::string reason =
      resolved ? gai_strerror(resolved->code)
               : fmt::format("no answer within {:.1f} s", std::chrono::duration<double>(Clock::now() - begun).count());
  base::fail(ErrorKind::environment, place, "connect", "MASTER_ADDR is '{}', which cannot be resolved: {}",
             endpoint.host, reason);
}

void fail_to_listen(const Endpoint& endpoint, const RankContext& place, int error) {
  if (error == EADDRINUSE) {
    base::fail(ErrorKind::environment, place, "connect",
               "{} is in use, perhaps by another job; give each job its own port (MASTER_PORT, "
               "--main_process_port)",
               text(endpoint));
  }
  if (error == EADDRNOTAVAIL) {
    base::fail(ErrorKind::environment, place, "connect",
               "MASTER_ADDR is {}, which is not an address of this machine; it must name the machine of rank 0",
               endpoint.host);
  }
  base::fail(ErrorKind::io, place, "connect", "cannot listen on {}: {}", text(endpoint), std::strerror(error));
}

FileDescriptor listen_on(const Endpoint& endpoint, const RankContext& place, Deadline deadline) {
  const Addresses addresses = resolve_endpoint(endpoint, place, deadline);
  int error = 0;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    FileDescriptor socket = open_socket(*each, SOCK_STREAM);
    const int on = 1;  // allows the port of a job that has just ended
    const bool listens =
        socket.get() >= 0 && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 && ::listen(socket.get(), 4096) == 0;
    if (listens) return socket;
    error = errno;
  }
  fail_to_listen(endpoint, place, error);
}

int64_t port_of(const FileDescriptor& socket) {
  const sockaddr_storage own = own_address(socket);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

std::string host_of(const FileDescriptor& socket) {
  const sockaddr_storage own = own_address(socket);
  return numeric_address(reinterpret_cast<const sockaddr*>(&own), sizeof(own));
}

bool is_port_open(const Addresses& addresses, Deadline deadline) {
  int64_t untried = 0;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) ++untried;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next, --untried) {
    // Each address gets an equal share of the remaining time, because one that drops packets must not use all of it.
    const auto now = Clock::now();
    if (connects(*each, now + (deadline - now) / untried)) return true;
  }
  return false;
}

std::string local_address_towards(const Endpoint& endpoint, const RankContext& place, Deadline deadline) {
  const Addresses addresses = resolve_endpoint(endpoint, place, deadline);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    // connect() on a datagram socket sends nothing; it only consults the routing table.
    const FileDescriptor socket = open_socket(*each, SOCK_DGRAM);
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) != 0) continue;
    if (auto name = host_of(socket); !name.empty()) return name;
  }
  base::fail(ErrorKind::environment, place, "connect", "no network interface of this machine reaches {}",
             endpoint.host);
}

}  // namespace accelerate::comm

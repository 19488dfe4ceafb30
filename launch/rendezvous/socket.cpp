// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous/socket.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "launch/plan/error.hpp"
#include "launch/plan/hosts.hpp"
#include "launch/run/port_owner.hpp"

namespace accelerate::launch {
namespace {

const sockaddr* generic(const SocketAddress& address) { return reinterpret_cast<const sockaddr*>(&address.storage); }

/// Enables TCP keep-alive: a lost peer machine is detected after 5 + 4 * 5 seconds.
void enable_keepalive(int connection) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(connection, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 25'000);
}

[[noreturn]] void cannot_listen(const std::string& host, int64_t port, int error) {
  if (error == EADDRNOTAVAIL) {
    fail(ErrorKind::environment,
         "main_process_ip {} is not an address of this machine, which is machine_rank 0; set the address of this one, "
         "or "
         "give it another machine_rank",
         host);
  }
  if (error == EADDRINUSE) {
    fail(ErrorKind::environment, "main_process_port {} is in use on {}{}; give another, the same on all machines", port,
         host, port_owner_text(port));
  }
  fail(ErrorKind::environment, "no port {} on {}: {}", port, host, std::strerror(error));
}

}  // namespace

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 == 127;
}

std::string SocketAddress::text() const {
  std::array<char, NI_MAXHOST> name{};
  getnameinfo(generic(*this), length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST);
  return name.data();
}

void SocketAddress::set_port(int64_t port) {
  // The port has the same offset in both address families.
  reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(static_cast<uint16_t>(port));
}

std::vector<SocketAddress> addresses_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    fail(ErrorKind::environment, "main_process_ip {} cannot be resolved on this machine: {}", host,
         gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const auto* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    auto& address = addresses.emplace_back();
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
  }
  return addresses;
}

base::FileDescriptor listen_on(const std::string& host, int64_t port) {
  int error = EADDRNOTAVAIL;
  for (auto& address : addresses_of(host)) {
    if (address.is_loopback() && !is_loopback_name(host)) {
      fail(ErrorKind::environment,
           "main_process_ip {} is {} on this machine, where other machines cannot reach it; give its address in the "
           "network",
           host, address.text());
    }
    address.set_port(port);
    base::FileDescriptor listener(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int one = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener.get(), generic(address), address.length) == 0 && listen(listener.get(), 128) == 0)
      return listener;
    error = errno;
  }
  cannot_listen(host, port, error);
}

base::FileDescriptor accept_from(int listener) {
  base::FileDescriptor connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection) enable_keepalive(connection.get());
  return connection;
}

int connect_to(const SocketAddress& address, base::FileDescriptor& connection) {
  constexpr int patience_ms = 2000;
  connection.reset(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection) return errno;
  if (connect(connection.get(), generic(address), address.length) != 0 && errno != EINPROGRESS) return errno;
  pollfd wait{.fd = connection.get(), .events = POLLOUT, .revents = 0};
  if (poll(&wait, 1, patience_ms) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) enable_keepalive(connection.get());
  return error;
}

base::FileDescriptor keep_port_beside(int listener, int64_t& port) {
  SocketAddress address;
  address.length = sizeof address.storage;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  address.set_port(0);
  base::FileDescriptor kept(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!kept || bind(kept.get(), generic(address), address.length) != 0) {
    fail(ErrorKind::environment, "no port on {}: {}", address.text(), std::strerror(errno));
  }
  const int one = 1;
  setsockopt(kept.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  getsockname(kept.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  port = ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  return kept;
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Connections between the launchers of several machines.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] bool is_loopback() const;
  [[nodiscard]] std::string text() const;  ///< "10.0.0.1"
  void set_port(int64_t port);
};

/// The addresses of a host's name, or the one that is written there.
/// Throws LaunchError (1) when nobody knows the name.
std::vector<SocketAddress> addresses_of(const std::string& host);

/// Listens on this host's address and no other.
/// Throws LaunchError (1) when the host is another machine, or its name means this machine alone, or the port is in
/// use.
base::FileDescriptor listen_on(const std::string& host, int64_t port);

/// A connection that comes to a listening socket, non-blocking; none where none waits.
base::FileDescriptor accept_from(int listener);

/// One try, of two seconds at most; returns errno, or 0 and a non-blocking connection.
int connect_to(const SocketAddress& address, base::FileDescriptor& connection);

/// A port of the address that an accepted connection or a listener has, kept for rank 0 while the descriptor lives:
/// bound and not listening, open to a listener with SO_REUSEADDR.
base::FileDescriptor keep_port_beside(int listener, int64_t& port);

}  // namespace accelerate::launch

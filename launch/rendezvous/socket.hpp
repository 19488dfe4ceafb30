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
  [[nodiscard]] std::string text() const;  ///< returns "10.0.0.1"
  void set_port(int64_t port);
};

/// Resolves a host name or a literal address.
/// \throws LaunchError (1) if the name cannot be resolved.
std::vector<SocketAddress> addresses_of(const std::string& host);

/// Listens only on this host's address.
/// \throws LaunchError (1) if the host is another machine, if its name resolves only to the loopback address, or if the
///         port is in use.
base::FileDescriptor listen_on(const std::string& host, int64_t port);

/// Accepts a connection as a non-blocking descriptor. Returns an empty descriptor if none is pending.
base::FileDescriptor accept_from(int listener);

/// Tries once, for at most two seconds. Returns 0 and a non-blocking connection, or errno.
int connect_to(const SocketAddress& address, base::FileDescriptor& connection);

/// Reserves a port for rank 0 on the local address of a connection or listener, during the lifetime of the descriptor.
/// The port is bound and not listening, so a listener with SO_REUSEADDR can use it.
base::FileDescriptor keep_port_beside(int listener, int64_t& port);

}  // namespace accelerate::launch

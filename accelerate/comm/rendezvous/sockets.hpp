// SPDX-License-Identifier: Apache-2.0
// Sockets for the addresses of a job: resolve, listen, probe for a listener. Private.
#pragma once

#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::comm {

using base::FileDescriptor;

struct Endpoint {
  std::string host;
  int64_t port;
};

/// Returns "10.0.0.1:29500" or "[::1]:29500".
std::string text(const Endpoint& endpoint);

inline bool is_v6(std::string_view address) { return address.find(':') != std::string_view::npos; }

/// Returns "192.0.2.2" or "fd00::2", or "" for other address families.
std::string numeric_address(const sockaddr* address, socklen_t length);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
using Deadline = std::chrono::steady_clock::time_point;

/// \throws Error (environment), naming MASTER_ADDR, if the host has no address or is not resolved before the deadline.
Addresses resolve_endpoint(const Endpoint& endpoint, const RankContext& place, Deadline deadline = Deadline::max());

/// Returns a socket that listens only on this address. Port 0 selects a free port, see port_of().
/// \throws Error as resolve_endpoint() and fail_to_listen() do.
FileDescriptor listen_on(const Endpoint& endpoint, const RankContext& place, Deadline deadline = Deadline::max());

/// Returns the port to which a socket is bound; host_of() returns the numeric address.
int64_t port_of(const FileDescriptor& socket);
std::string host_of(const FileDescriptor& socket);

/// \param error  errno of the failed bind or listen.
/// \throws Error (environment) if the address is in use or belongs to another machine, otherwise Error (io).
[[noreturn]] void fail_to_listen(const Endpoint& endpoint, const RankContext& place, int error);

/// True if a process accepts connections there. Returns before the deadline.
bool is_port_open(const Addresses& addresses, Deadline deadline);

/// Returns the address of this machine that routes to the endpoint. gloo binds to it, so that it uses the job's
/// interface.
/// \throws Error (environment) if the machine has no route, and as resolve_endpoint() does.
std::string local_address_towards(const Endpoint& endpoint, const RankContext& place,
                                  Deadline deadline = Deadline::max());

}  // namespace accelerate::comm

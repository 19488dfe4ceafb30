// SPDX-License-Identifier: Apache-2.0
// Sockets on addresses that a job names: resolve, listen, look whether somebody listens. Private.
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

/// "10.0.0.1:29500", "[::1]:29500".
std::string text(const Endpoint& endpoint);

inline bool is_v6(std::string_view address) { return address.find(':') != std::string_view::npos; }

/// "192.0.2.2", "fd00::2"; "" for what is no IP address.
std::string numeric_address(const sockaddr* address, socklen_t length);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
using Deadline = std::chrono::steady_clock::time_point;

/// Throws Error (environment), naming MASTER_ADDR, for a host that has no address, or when those who know it do not
/// answer before the deadline.
Addresses resolve(const Endpoint& endpoint, const Place& place, Deadline deadline = Deadline::max());

/// A socket that listens on this address and no other. Port 0: a free one, see port_of.
/// Throws Error as resolve and fail_to_listen do.
FileDescriptor listen_on(const Endpoint& endpoint, const Place& place, Deadline deadline = Deadline::max());

/// The port and the numeric address that a socket is bound to.
int64_t port_of(const FileDescriptor& socket);
std::string host_of(const FileDescriptor& socket);

/// error   errno of the failed bind or listen. Throws Error: environment for an address that is taken or not this
///         machine's, io for anything else.
[[noreturn]] void fail_to_listen(const Endpoint& endpoint, const Place& place, int error);

/// Whether somebody accepts connections there, found out before the deadline.
bool somebody_listens(const Addresses& addresses, Deadline deadline);

/// The address of this machine that reaches `host`: what gloo binds to, so that it takes the job's interface.
/// Throws Error (environment) where the machine has none, and as resolve does.
std::string local_address_towards(const Endpoint& endpoint, const Place& place, Deadline deadline = Deadline::max());

}  // namespace accelerate::comm

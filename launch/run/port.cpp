// SPDX-License-Identifier: Apache-2.0
#include "launch/run/port.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "launch/plan/options.hpp"

namespace accelerate::launch {
namespace {

constexpr int64_t default_port = 29500;

/// Returns 0 or errno.
int bind_loopback(int socket, int64_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

int64_t port_of(int socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

}  // namespace

std::string port_moved(int64_t number) {
  return fmt::format("accelerate_launch: port {} is in use, perhaps by another job; this one uses {}", default_port,
                     number);
}

ReservedPort::ReservedPort(std::optional<int64_t> wanted) {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  if (socket_ >= 0) setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  int error = socket_ < 0 ? errno : bind_loopback(socket_, wanted.value_or(default_port));
  const bool moved = error == EADDRINUSE && !wanted;
  if (moved) error = bind_loopback(socket_, 0);
  if (error != 0) {
    if (socket_ >= 0) close(socket_);
    if (error == EADDRINUSE) {
      throw LaunchError(1, fmt::format("accelerate_launch: --main_process_port {} is in use on 127.0.0.1, perhaps by "
                                       "another job; give another, or 0 for a free one",
                                       *wanted));
    }
    throw LaunchError(1, fmt::format("accelerate_launch: no port {} on 127.0.0.1: {}", wanted.value_or(default_port),
                                     std::strerror(error)));
  }
  number_ = port_of(socket_);
  if (moved) {
    fmt::print(stderr, "{}\n", port_moved(number_));
  }
}

ReservedPort::~ReservedPort() { close(socket_); }

}  // namespace accelerate::launch

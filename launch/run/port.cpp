// SPDX-License-Identifier: Apache-2.0
#include "launch/run/port.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "launch/plan/error.hpp"
#include "launch/run/file_limit.hpp"
#include "launch/run/port_owner.hpp"

namespace accelerate::launch {
namespace {

/// Returns 0 or errno.
int bind_loopback(int socket, int64_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

/// Claims the port for this launcher. Two sockets with SO_REUSEADDR can bind the same port while neither listens, so
/// bind() alone is not a claim. An abstract Unix socket has the same network namespace as the port and disappears with
/// its process.
bool claim(int lock, int64_t port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto end =
      fmt::format_to_n(address.sun_path + 1, sizeof address.sun_path - 1, "accelerate_launch.port.{}", port);
  const auto length = static_cast<socklen_t>(end.out - reinterpret_cast<char*>(&address));
  return bind(lock, reinterpret_cast<const sockaddr*>(&address), length) == 0 || errno != EADDRINUSE;
}

void let_rank_0_bind(int socket) {
  const int one = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
}

/// Returns 0 or errno. The first attempt does not set SO_REUSEADDR and therefore fails if any process uses the port.
/// The second attempt tolerates leftover connections of a job that has just ended.
int keep_port(int socket, int lock, int64_t port) {
  if (port != 0 && !claim(lock, port)) return EADDRINUSE;
  const int error = bind_loopback(socket, port);
  let_rank_0_bind(socket);
  return error == EADDRINUSE && port != 0 ? bind_loopback(socket, port) : error;
}

int64_t port_of(int socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

}  // namespace

int64_t port_of_job(const std::string& job_id) {
  uint32_t hash = 2166136261;
  for (const unsigned char c : job_id) hash = (hash ^ c) * 16777619;
  return 20000 + hash % 10000;
}

std::string port_moved(int64_t number) {
  return fmt::format("port {} is in use, perhaps by another job; this one uses {}", kDefaultPort, number);
}

ReservedPort::ReservedPort(std::optional<int64_t> wanted) {
  int error = keep(wanted.value_or(kDefaultPort));
  const bool moved = error == EADDRINUSE && !wanted;
  if (moved) error = keep(0);
  if (error == EADDRINUSE && wanted) {
    fail(ErrorKind::environment, "--main_process_port {} is in use on 127.0.0.1{}; give another, or 0 for a free one",
         *wanted, port_owner_text(*wanted));
  }
  if (error == EMFILE) {
    errno = error;
    fail_to_open("socket");
  }
  if (error != 0) {
    fail(ErrorKind::environment, "no port {} on 127.0.0.1: {}", wanted.value_or(kDefaultPort), std::strerror(error));
  }
  number_ = port_of(socket_.get());
  if (wanted == 0 || moved)
    claim(lock_.get(), number_);  // against a launcher that requests this port number explicitly
  moved_ = moved;
}

int ReservedPort::keep(int64_t port) {
  socket_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_) return errno;
  lock_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!lock_) return errno;
  return keep_port(socket_.get(), lock_.get(), port);
}

}  // namespace accelerate::launch

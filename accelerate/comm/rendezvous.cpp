// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/rendezvous.hpp"

#include <ATen/ops/zeros.h>
#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

namespace accelerate::comm {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// A file descriptor that closes itself.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct Endpoint {
  std::string host;
  int64_t port;
};

/// "10.0.0.1:29500", "[::1]:29500".
std::string text(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", endpoint.host, endpoint.port) : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

Addresses resolve(const Endpoint& endpoint, const Place& place) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (code != 0) {
    base::fail(ErrorKind::environment, place, "connect", "MASTER_ADDR is '{}', which cannot be resolved: {}",
               endpoint.host, gai_strerror(code));
  }
  return {found, &freeaddrinfo};
}

[[noreturn]] void fail_to_listen(const Endpoint& endpoint, const Place& place, int error) {
  if (error == EADDRINUSE) {
    base::fail(ErrorKind::environment, place, "connect",
               "{} is taken, by another job perhaps; give each job a port of its own (MASTER_PORT, "
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

/// Bound to the one address, where TCPStore by itself would listen on all.
Socket listen_on(const Endpoint& endpoint, const Place& place) {
  const Addresses addresses = resolve(endpoint, place);
  int error = 0;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    Socket socket(::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol));
    const int on = 1;  // a port whose last job just ended is free
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 && ::listen(socket.get(), 4096) == 0) return socket;
    error = errno;
  }
  fail_to_listen(endpoint, place, error);
}

bool answers(const Addresses& addresses) {
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    const Socket socket(::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol));
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0) return true;
  }
  return false;
}

/// TCPStore's own retry sleeps a second and logs a backtrace each time.
void wait_for_server(const Endpoint& endpoint, const Place& place, Milliseconds timeout) {
  const Addresses addresses = resolve(endpoint, place);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (Milliseconds pause{5}; !answers(addresses); pause = std::min(pause * 2, Milliseconds(250))) {
    if (std::chrono::steady_clock::now() + pause > deadline) {
      base::fail(ErrorKind::peer, place, "connect",
                 "waited {:g} s for rank 0 at {}, it has not come; start it, or check MASTER_ADDR and MASTER_PORT",
                 static_cast<double>(timeout.count()) / 1000.0, text(endpoint));
    }
    std::this_thread::sleep_for(pause);
  }
}

Endpoint endpoint_of(const env::ProcessEnv& process, const Place& place) {
  // A job on one machine needs no name for it.
  if (!process.master_addr && process.local_world_size != process.world_size) {
    base::fail(ErrorKind::environment, place, "connect",
               "MASTER_ADDR is not set, and the job spans machines; set it to the address of rank 0's");
  }
  if (!process.master_port || *process.master_port == 0) {
    base::fail(ErrorKind::environment, place, "connect",
               "MASTER_PORT is {}, must be a free port of rank 0's machine, the same on all ranks",
               process.master_port ? "0" : "not set");
  }
  return {process.master_addr.value_or("127.0.0.1"), *process.master_port};
}

int64_t port_of(const Socket& socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(own).sin_port);
}

/// The server's with a socket that listens, else a client's.
c10::intrusive_ptr<c10d::Store> open_store(const Endpoint& endpoint, std::optional<Socket> listening,
                                           const Place& place, Milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(endpoint.port);
  options.isServer = listening.has_value();
  options.waitWorkers = false;
  options.timeout = timeout;
  if (listening) {
    options.masterListenFd = listening->release();
  } else {
    wait_for_server(endpoint, place, timeout);
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(endpoint.host, options);
  } catch (const std::exception&) {
    base::fail(ErrorKind::peer, place, "connect", "what answers at {} is not the store of rank 0 of this job",
               text(endpoint));
  }
}

/// False too where the store is gone.
bool has_key(c10d::Store& store, const std::string& key) {
  try {
    return store.check({key});
  } catch (const std::exception&) {
    return false;
  }
}

std::string here_key(int64_t rank) { return fmt::format("here/{}", rank); }

/// So that a rank that never comes is named before a backend fails in its own words.
void wait_for_all(c10d::Store& store, const env::ProcessEnv& process, const Place& place, Milliseconds timeout) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < process.world_size; ++rank) keys.push_back(here_key(rank));
  std::vector<int64_t> missing;
  try {
    store.set(here_key(process.rank), "");
    store.wait(keys, timeout);
    return;
  } catch (const std::exception&) {
    for (int64_t rank = 0; rank < process.world_size; ++rank) {
      if (!has_key(store, here_key(rank))) missing.push_back(rank);
    }
  }
  base::fail(ErrorKind::peer, place, "connect", "waited {:g} s for {} {}, {} not come",
             static_cast<double>(timeout.count()) / 1000.0, missing.size() == 1 ? "rank" : "ranks",
             fmt::join(missing, ", "), missing.size() == 1 ? "it has" : "they have");
}

// The port of a job is one, its connections (Accelerators) may be several: the first opens the store, and it stays open
// to the end of the process, so that a later connection never meets a server that is going away.
struct JobStore {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t connections = 0;
};

c10::intrusive_ptr<c10d::Store> next_connection(const env::ProcessEnv& process, const Place& place,
                                                Milliseconds timeout) {
  static std::mutex mutex;
  static std::map<std::string, JobStore> jobs;
  const Endpoint endpoint = endpoint_of(process, place);
  const std::lock_guard lock(mutex);
  JobStore& job = jobs[fmt::format("{} {} {}", endpoint.host, endpoint.port, process.rank)];
  if (!job.store) {
    const bool serve = process.rank == 0 && !process.agent_store;
    std::optional<Socket> listening;
    if (serve) listening.emplace(listen_on(endpoint, place));
    job.store = open_store(endpoint, std::move(listening), place, timeout);
  }
  // Every rank makes its connections in one order, so they count alike.
  return c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("accelerate/{}/{}", process.restart_count, job.connections++), job.store);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> meet(const env::ProcessEnv& process, const Place& place, Milliseconds timeout) {
  if (process.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  auto store = next_connection(process, place, timeout);
  wait_for_all(*store, process, place, timeout);
  return store;
}

c10::intrusive_ptr<c10d::Store> meet_over(c10d::Backend& backend, const env::ProcessEnv& process, const Place& place,
                                          Milliseconds timeout) {
  if (process.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  const bool serve = process.rank == 0;
  const bool one_machine = process.local_world_size == process.world_size;
  Endpoint endpoint{process.master_addr.value_or(one_machine ? "127.0.0.1" : base::host_name()), 0};
  std::vector<at::Tensor> told{at::zeros({NI_MAXHOST + 1}, at::kLong)};
  auto* const words = told[0].mutable_data_ptr<int64_t>();
  c10::intrusive_ptr<c10d::Store> store;
  if (serve) {
    Socket socket = listen_on(endpoint, place);
    endpoint.port = port_of(socket);
    std::copy(endpoint.host.begin(), endpoint.host.end(), words + 1);
    words[0] = endpoint.port;
    store = open_store(endpoint, std::move(socket), place, timeout);
  }
  backend.broadcast(told, {.rootRank = 0, .timeout = timeout})->wait(timeout);
  if (serve) return store;
  endpoint.port = words[0];
  endpoint.host.assign(words + 1, std::find(words + 1, words + NI_MAXHOST, 0));
  return open_store(endpoint, std::nullopt, place, timeout);
}

std::string local_address_towards(const std::string& host, int64_t port, const Place& place) {
  const Addresses addresses = resolve({host, port}, place);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    // A datagram socket's connect sends nothing; it only asks the routing table.
    const Socket socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    std::array<char, NI_MAXHOST> name{};
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) ==
            0) {
      return name.data();
    }
  }
  base::fail(ErrorKind::environment, place, "connect", "no network interface of this machine reaches {}", host);
}

}  // namespace accelerate::comm

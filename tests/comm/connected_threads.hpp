// SPDX-License-Identifier: Apache-2.0
// Ranks as threads that connect as processes do.
#pragma once

#include "tests/testing.hpp"
//
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/env/process_env.hpp"

namespace testing {

/// A port of this machine that no program uses.
inline int64_t free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ::bind(listener, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(listener);
  return ntohs(address.sin_port);
}

/// Calls `check` on every rank of a group. An exception fails the test.
inline void on_connected_threads(int64_t ranks, const std::string& backend,
                                 const std::function<void(const accelerate::comm::Group&)>& check) {
  const int64_t port = free_port();
  std::vector<std::jthread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&check, &backend, rank, ranks, port] {
      const accelerate::env::ProcessEnv process{.rank = rank,
                                                .world_size = ranks,
                                                .local_rank = rank,
                                                .local_world_size = ranks,
                                                .master_addr = "127.0.0.1",
                                                .master_port = port};
      try {
        const auto group = accelerate::comm::connect(
            process, {.backend = backend, .timeout = std::chrono::seconds(60), .force_group = true});
        check(group);
        group.barrier();
      } catch (const std::exception& error) {
        FAIL_CHECK(std::string(error.what()));
      }
    });
  }
}

}  // namespace testing

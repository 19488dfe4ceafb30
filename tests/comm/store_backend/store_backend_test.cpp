// SPDX-License-Identifier: Apache-2.0
// A table row is enough to register a backend, and the conformance cases pass for it.
#include "tests/comm/store_backend/store_backend.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "accelerate/env/settings.hpp"
#include "tests/comm/collectives_support.hpp"

namespace {

using accelerate::comm::connect;

int64_t port_nobody_has() {
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

/// Runs ranks as threads, which connect as processes do.
void on_every_stored_rank(const std::function<void(const Group&)>& check) {
  accelerate::comm::add_backend(store_backend::row());
  for (const int64_t ranks : {1, 2, 3}) {
    const int64_t port = port_nobody_has();
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&check, rank, ranks, port] {
        const accelerate::env::ProcessEnv process{.rank = rank,
                                                  .world_size = ranks,
                                                  .local_rank = rank,
                                                  .local_world_size = ranks,
                                                  .master_addr = "127.0.0.1",
                                                  .master_port = port};
        try {
          const Group group =
              connect(process, {.backend = "store", .timeout = std::chrono::seconds(60), .force_group = true});
          check(group);
          group.barrier();
        } catch (const std::exception& error) {
          FAIL_CHECK(std::string(error.what()));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace

#define COLLECTIVES_CASE(name) TEST_CASE("store: " name)
#define ON_EVERY_RANK on_every_stored_rank
#include "tests/comm/collectives_cases.hpp"

TEST_CASE("an external backend needs only its row in the table") {
  on_every_stored_rank([](const Group& group) { CHECK(group.backend() == "store"); });
  CHECK(accelerate::env::resolve_settings({.backend = "store"}, {}, {}).backend == "store");
  CHECK(accelerate::env::resolve_settings({}, {{"ACCELERATE_BACKEND", "store"}}, {}).backend == "store");
}

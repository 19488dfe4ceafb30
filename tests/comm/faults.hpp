// SPDX-License-Identifier: Apache-2.0
// Starts ranks as real processes that fail on purpose; fault_ranks.cpp contains the scenarios.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "tests/temporary_folder.hpp"

// Internal linkage, because FAULT_RANKS is another program in each file that includes this header.
namespace faults {

struct Ended {
  int code = 0;
  std::string out{};
  std::string err{};
};

/// A listening socket on 127.0.0.1 and its port.
class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::listen(fd_, 8) == 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { ::close(fd_); }
  [[nodiscard]] int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

static inline int free_port() { return Listener().port(); }

/// Runs command lines concurrently, each for at most 60 s.
static inline std::vector<Ended> run(const std::vector<std::string>& commands) {
  const testing::TemporaryFolder folder;
  std::string script = "unset ACCELERATE_BACKEND RANK WORLD_SIZE GLOO_SOCKET_IFNAME; ";
  for (size_t i = 0; i < commands.size(); ++i) {
    const auto file = folder / std::to_string(i);
    script += fmt::format("(timeout -k 5 60 {} >{}.out 2>{}.err; echo $? >{}.code) & ", commands[i], file, file, file);
  }
  REQUIRE(std::system((script + "wait").c_str()) == 0);
  std::vector<Ended> all;
  for (size_t i = 0; i < commands.size(); ++i) {
    const auto file = folder / std::to_string(i);
    all.push_back({std::stoi(testing::text_of(file + ".code")), testing::text_of(file + ".out"),
                   testing::text_of(file + ".err")});
  }
  return all;
}

/// \param extra  Variables that are set last and therefore have precedence.
static inline std::string rank_command(int rank, int world, int port, const std::string& scenario,
                                       const std::string& address = "127.0.0.1", const std::string& extra = "") {
  return fmt::format(
      "env RANK={} WORLD_SIZE={} LOCAL_RANK={} LOCAL_WORLD_SIZE={} MASTER_ADDR={} MASTER_PORT={} "
      "ACCELERATE_BACKEND=gloo {} {} {}",
      rank, world, rank, world, address, port, extra, FAULT_RANKS, scenario);
}

/// Runs both ranks of a gloo job of two.
static inline std::vector<Ended> run_gloo(const std::string& scenario, int port,
                                          const std::string& address = "127.0.0.1", const std::string& extra = "") {
  return run({rank_command(0, 2, port, scenario, address, extra), rank_command(1, 2, port, scenario, address, extra)});
}
static inline std::vector<Ended> run_gloo(const std::string& scenario) { return run_gloo(scenario, free_port()); }

/// The ranks of a gloo job exchange tensors through shared memory or, with the variable, through the network.
static inline const std::vector<std::string> kGlooTransports{"", "ACCELERATE_GLOO_SHARED_MEMORY=no"};

static inline std::string at_rank(int rank, const std::string& text) {
  return fmt::format("peer: [rank {} of 2, {}] {}\n", rank, accelerate::base::host_name(), text);
}

/// Checks rank 0's errors in the scenario "late_to_all": one line per operation that waits for rank 1.
static inline void check_all_name_rank_1(const std::string& out, const std::string& end) {
  const std::vector<std::pair<std::string, std::string>> waits{
      {"all_gather", "all_gather: waited 2 s in operation 1 ([2] float32)"},
      {"all_gather_async", "all_gather: waited 2 s in operation 1 ([2] float32)"},
      {"all_gather_bytes", "all_gather: waited 2 s in operation 1 ([5] uint8)"},
      {"all_to_all", "all_to_all: waited 2 s in operation 1 (no tensor)"},
      {"broadcast", "broadcast: waited 2 s in operation 1 ([2] float32)"},
      {"broadcast_bytes", "broadcast: waited 2 s in operation 1 ([1] int64)"},
      {"duplicate", "duplicate: waited 2 s in operation 1 (no tensor)"},
      {"gather", "gather: waited 2 s in operation 1 ([2] float32)"},
      {"reduce", "reduce: waited 2 s in operation 1 ([2] float32)"},
      {"reduce_scatter", "reduce_scatter: waited 2 s in operation 1 ([4] float32)"},
      {"scatter", "scatter: waited 2 s in operation 1 (no tensor)"},
      {"send", "send: waited 2 s in a message ([3000000] float32)"},
      {"split", "split: waited 2 s in operation 1 (no tensor)"}};
  CAPTURE(out);
  for (const auto& [name, text] : waits) {
    const auto line = fmt::format("{}> [rank 0 of 2, {}] {}; ", name, accelerate::base::host_name(), text);
    CAPTURE(line);
    const bool one_of_both =
        out.find(line + end) != std::string::npos || out.find(line + "rank 1 did not join.\n") != std::string::npos;
    CHECK(one_of_both);
  }
}

/// No backtrace and no retry messages: the error is complete.
static inline void check_quiet(const Ended& rank) {
  CAPTURE(rank.err);
  CHECK(rank.err.find("frame #") == std::string::npos);
  CHECK(rank.err.find("[W") == std::string::npos);
  CHECK(rank.err.find("[E") == std::string::npos);
  CHECK(rank.out.find("gloo/") == std::string::npos);
}

/// Error texts in debug mode for an operation that only rank 1 calls: between two steps with a barrier, and before the
/// last.
static inline const std::string kBarrierBesideExtra =
    "barrier: this rank calls barrier (no tensor), rank 1 calls all_reduce ([2] float32); all ranks must call the same "
    "operations in the same order.";
static inline const std::string kExtraBesideBarrier =
    "all_reduce: this rank calls all_reduce ([2] float32), rank 0 calls barrier (no tensor); all ranks must call the "
    "same operations in the same order.";
static inline const std::string kStepBesideExtra =
    "all_reduce: this rank calls all_reduce ([6] float32) on a duplicate of the group, rank 1 calls all_reduce ([2] "
    "float32); all ranks must call the same operations in the same order.";
static inline const std::string kExtraBesideStep =
    "all_reduce: this rank calls all_reduce ([2] float32), rank 0 calls all_reduce ([6] float32) on a duplicate of the "
    "group; all ranks must call the same operations in the same order.";

}  // namespace faults

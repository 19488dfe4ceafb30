// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/heartbeat.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "tests/launch/scratch.hpp"

using accelerate::base::Heartbeat;
using accelerate::base::HeartbeatPage;
namespace base = accelerate::base;

namespace {

/// Heartbeat of a process that runs `work`.
Heartbeat shown_by(const std::function<void()>& work) {
  const testing::Scratch scratch;
  const std::string path = scratch.path + "/page";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(ftruncate(file, sizeof(HeartbeatPage)) == 0);
  const void* memory = mmap(nullptr, sizeof(HeartbeatPage), PROT_READ, MAP_SHARED, file, 0);
  REQUIRE(memory != MAP_FAILED);
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("ACCELERATE_HEARTBEAT_FILE", path.c_str(), 1);
    work();
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
  close(file);
  return base::read_heartbeat(*static_cast<const HeartbeatPage*>(memory));
}

}  // namespace

TEST_CASE("a rank without any progress has an empty heartbeat") {
  CHECK(shown_by([] {}) == Heartbeat{});
}

TEST_CASE("a heartbeat contains steps, the last operation and the wait for it") {
  const std::array<int64_t, 2> shape{64, 12};
  const auto beat = shown_by([&] {
    base::record_heartbeat_step();
    base::record_collective(
        {.operation = "all_gather", .group = "world", .sequence = 41, .dtype = "float32", .shape = shape});
    new base::HeartbeatWaitScope(41);  // killed while it waits
  });
  CHECK(beat == Heartbeat{.beats = 2,
                          .step = 1,
                          .waiting_in = 41,
                          .sequence = 41,
                          .call = "all_gather, operation 41 of world ([64, 12] float32)"});
}

TEST_CASE("the end of a wait counts as progress; messages and tensorless operations have shorter texts") {
  const auto beat = shown_by([] {
    base::record_collective({.operation = "barrier", .group = "world", .sequence = 1});
    { const base::HeartbeatWaitScope wait(1); }
    new base::HeartbeatWaitScope(0);
  });
  CHECK(beat.beats == 2);
  CHECK(beat.waiting_in == -1);
  CHECK(beat.call == "barrier, operation 1 of world");
}

TEST_CASE("long names and many dimensions are cut, and other files are not changed") {
  const std::array<int64_t, 12> shape{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const auto beat = shown_by([&] {
    base::record_collective(
        {.operation = "x", .group = std::string(200, 'g'), .sequence = 1, .dtype = "bool", .shape = shape});
  });
  CHECK(beat.call == "x, operation 1 of " + std::string(55, 'g') + " ([1, 2, 3, 4, 5, 6, 7, 8] bool)");
  CHECK(shown_by([] {
          setenv("ACCELERATE_HEARTBEAT_FILE", "/dev/null", 1);
          base::record_heartbeat_step();
        }) == Heartbeat{});
}

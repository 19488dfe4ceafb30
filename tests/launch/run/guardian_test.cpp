// SPDX-License-Identifier: Apache-2.0
#include "launch/run/guardian.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "launch/run/orphans.hpp"
#include "tests/launch/run.hpp"

using accelerate::launch::AttemptResult;
using accelerate::launch::Guardian;
using accelerate::launch::Orphans;
using accelerate::launch::SubReaper;

namespace {

/// Starts a sleeping process in its own session with a double fork.
void leave_a_daemon() {
  if (fork() == 0) {
    setsid();
    if (fork() == 0) {
      while (true) pause();
    }
    _exit(0);
  }
}

}  // namespace

TEST_CASE("the guardian's result is sent, and so is its exception") {
  Guardian good([](int) { return AttemptResult{.exit_code = 7, .cause = "exit code 7"}; });
  CHECK(good.outcome() == AttemptResult{.exit_code = 7, .cause = "exit code 7"});
  Guardian bad(
      [](int) -> AttemptResult { accelerate::launch::fail_with(126, accelerate::ErrorKind::io, "x is {}", 1); });
  const auto refused = bad.outcome();
  REQUIRE(refused);
  CHECK(refused->exit_code == 126);
  CHECK(refused->refusal == "x is 1");
}

TEST_CASE("a killed guardian sends nothing, and its wait status states the signal") {
  Guardian guardian([](int) {
    while (true) pause();
    return AttemptResult{};
  });
  kill(guardian.pid(), SIGKILL);
  CHECK_FALSE(guardian.outcome());
  CHECK(guardian.status() == SIGKILL);
}

TEST_CASE("a guardian detects the end of its parent process") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    Guardian guardian([&](int gone) {
      [[maybe_unused]] auto written = write(ends[1], "up", 2);
      pollfd wait{.fd = gone, .events = POLLIN, .revents = 0};
      poll(&wait, 1, 30'000);
      written = write(ends[1], wait.revents != 0 ? "gone" : "late", 4);
      return AttemptResult{};
    });
    while (true) pause();
  }
  close(ends[1]);
  char message[5]{};
  REQUIRE(read(ends[0], message, 2) == 2);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  CHECK(read(ends[0], message, 4) == 4);
  CHECK(std::string(message) == "gone");
  close(ends[0]);
}

TEST_CASE("the sub-reaper gets and ends all orphans; other children are not affected") {
  const pid_t mine = fork();
  if (mine == 0) {
    while (true) pause();
  }
  const SubReaper reaper;
  const Orphans orphans(accelerate::launch::children());
  const pid_t rank = fork();
  if (rank == 0) {
    leave_a_daemon();
    leave_a_daemon();
    sleep(1);
    _exit(0);
  }
  waitpid(rank, nullptr, 0);
  CHECK(orphans.living().size() == 2);
  CHECK(orphans.end() == "");
  CHECK(orphans.living().empty());
  CHECK(testing::alive(mine));
  kill(mine, SIGKILL);
  waitpid(mine, nullptr, 0);
}

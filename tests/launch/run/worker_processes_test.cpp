// SPDX-License-Identifier: Apache-2.0
#include "launch/run/worker_processes.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "tests/launch/run.hpp"

using accelerate::launch::Worker;
using accelerate::launch::WorkerProcesses;
using std::chrono::milliseconds;

namespace {

/// Starts a process in its own group that exits with this code; if the code is negative, it sleeps.
pid_t start(int code) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (code >= 0) _exit(code);
    while (true) pause();
  }
  setpgid(pid, pid);
  return pid;
}

/// Waits until waitpid() can reap the process, which is slightly later than the end of its output.
bool ended(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0;
}

}  // namespace

TEST_CASE("the worker that the system reports as first is handled first") {
  WorkerProcesses lifetimes(milliseconds(0));
  for (int rank = 0; rank < 3; ++rank) lifetimes.add(rank, start(rank));
  for (const auto& worker : lifetimes.workers()) REQUIRE(ended(worker.pid));
  std::vector<int64_t> order;
  lifetimes.reap(lifetimes.workers()[1].pid, [&](const Worker& worker) {
    order.push_back(worker.rank);
    CHECK(WEXITSTATUS(*worker.status) == worker.rank);
  });
  CHECK(order == std::vector<int64_t>{1, 0, 2});
  CHECK(lifetimes.running() == 0);
}

TEST_CASE("a running or suspended worker has not exited") {
  WorkerProcesses lifetimes(milliseconds(0));
  lifetimes.add(0, start(-1));
  lifetimes.add(1, start(-1));
  const pid_t second = lifetimes.workers()[1].pid;
  kill(second, SIGSTOP);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(second), &info, WSTOPPED | WNOWAIT) == 0);
  lifetimes.reap(second, [](const Worker&) { FAIL("none has ended"); });
  CHECK(lifetimes.running() == 2);
  CHECK(lifetimes.suspended() == std::vector<int64_t>{1});
  lifetimes.send_signal(SIGKILL);
  for (const auto& worker : lifetimes.workers()) REQUIRE(ended(worker.pid));
  lifetimes.reap(-1, [](const Worker& worker) { CHECK(*worker.status == SIGKILL); });
  CHECK(lifetimes.running() == 0);
}

TEST_CASE("a worker that does not end within the grace time is killed") {
  WorkerProcesses lifetimes(milliseconds(1));
  lifetimes.add(0, start(-1));
  CHECK(lifetimes.poll_timeout_ms() == -1);
  lifetimes.stop(SIGCONT);
  CHECK(lifetimes.stopping());
  CHECK(lifetimes.poll_timeout_ms() >= 1);
  std::this_thread::sleep_for(milliseconds(2));
  lifetimes.kill_when_due();
  REQUIRE(ended(lifetimes.workers()[0].pid));
  lifetimes.reap(-1, [](const Worker& worker) { CHECK(*worker.status == SIGKILL); });
}

TEST_CASE("a grace time of years is waited for in long intervals") {
  WorkerProcesses lifetimes(std::chrono::hours(24 * 400));
  CHECK(lifetimes.poll_timeout_ms() == -1);
  lifetimes.stop(SIGTERM);
  CHECK(lifetimes.poll_timeout_ms() == 60'000);
}

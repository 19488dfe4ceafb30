// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/preemption.hpp"

#include "tests/testing.hpp"
//
#include "accelerate/base/error.hpp"

using accelerate::job::PreemptionGuard;

TEST_CASE("the preemption guard records SIGTERM and SIGUSR1, and the process continues") {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const PreemptionGuard notice;
    CHECK_FALSE(notice.requested());
    std::raise(signal);
    CHECK(notice.requested());
  }
  const PreemptionGuard again;
  CHECK_FALSE(again.requested());
}

TEST_CASE("a second guard is refused, and the destructor restores the signal handlers") {
  static int received = 0;
  const auto before = std::signal(SIGUSR1, [](int) { ++received; });
  {
    const PreemptionGuard notice({SIGUSR1});
    CHECK_THROWS_WITH(PreemptionGuard(),
                      "PreemptionGuard: another guard already exists, and only one receives the signals; use the same "
                      "guard in both parts of the program");
    CHECK_THROWS_AS(PreemptionGuard({SIGKILL}), accelerate::Error);
    std::raise(SIGUSR1);
    CHECK(received == 0);
  }
  std::raise(SIGUSR1);
  CHECK(received == 1);
  CHECK_THROWS_WITH(PreemptionGuard({SIGUSR1, SIGKILL}),
                    "PreemptionGuard: signal 9 cannot be handled: Invalid argument");
  std::raise(SIGUSR1);
  CHECK(received == 2);
  std::signal(SIGUSR1, before);
}

TEST_CASE("the destructor restores the handler of a signal that is listed twice, too") {
  static int received = 0;
  const auto before = std::signal(SIGUSR1, [](int) { ++received; });
  { const PreemptionGuard notice({SIGUSR1, SIGUSR1}); }
  std::raise(SIGUSR1);
  CHECK(received == 1);
  std::signal(SIGUSR1, before);
}

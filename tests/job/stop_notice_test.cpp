// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/stop_notice.hpp"

#include "tests/testing.hpp"
//
#include "accelerate/base/error.hpp"

using accelerate::job::StopNotice;

TEST_CASE("SIGTERM and SIGUSR1 are heard and end nothing, as long as the notice lives") {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const StopNotice notice;
    CHECK_FALSE(notice.came());
    std::raise(signal);
    CHECK(notice.came());
  }
  const StopNotice again;
  CHECK_FALSE(again.came());
}

TEST_CASE("there is one at a time; signals do again what they did before") {
  static int heard = 0;
  const auto before = std::signal(SIGUSR1, [](int) { ++heard; });
  {
    const StopNotice notice({SIGUSR1});
    CHECK_THROWS_WITH(StopNotice(),
                      "StopNotice: there is one already, and signals go to one; let both parts of the program look at "
                      "that one");
    CHECK_THROWS_AS(StopNotice({SIGKILL}), accelerate::Error);
    std::raise(SIGUSR1);
    CHECK(heard == 0);
  }
  std::raise(SIGUSR1);
  CHECK(heard == 1);
  CHECK_THROWS_WITH(StopNotice({SIGUSR1, SIGKILL}), "StopNotice: signal 9 cannot be handled: Invalid argument");
  std::raise(SIGUSR1);
  CHECK(heard == 2);
  std::signal(SIGUSR1, before);
}

TEST_CASE("a signal that is named twice does again what it did before, too") {
  static int heard = 0;
  const auto before = std::signal(SIGUSR1, [](int) { ++heard; });
  { const StopNotice notice({SIGUSR1, SIGUSR1}); }
  std::raise(SIGUSR1);
  CHECK(heard == 1);
  std::signal(SIGUSR1, before);
}

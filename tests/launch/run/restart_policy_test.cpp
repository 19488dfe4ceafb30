// SPDX-License-Identifier: Apache-2.0
#include "launch/run/restart_policy.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

using accelerate::launch::decide;
using accelerate::launch::FailedAttempt;
using accelerate::launch::RestartOptions;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

FailedAttempt min_uptime(const std::string& cause = "exit code 1") {
  return {.cause = cause, .lasted = milliseconds(200)};
}
FailedAttempt later(const std::string& cause = "exit code 1") { return {.cause = cause, .lasted = seconds(10)}; }

}  // namespace

TEST_CASE("without --max_restarts a failure ends the job without a message") {
  const auto decision = decide({later()}, {});
  CHECK_FALSE(decision.after);
  CHECK(decision.line == "");
}

TEST_CASE("a failure causes a restart until max_restarts is reached") {
  const RestartOptions two{.max_restarts = 2};
  CHECK(decide({later()}, two).after == milliseconds(500));
  CHECK(decide({later()}, two).line == "accelerate_launch: restart 1 of 2 in 0.5 s\n");
  CHECK(decide({later(), later()}, two).line == "accelerate_launch: restart 2 of 2 in 0.5 s\n");
  const auto last = decide({later(), later(), later()}, two);
  CHECK_FALSE(last.after);
  CHECK(last.line == "accelerate_launch: no restart: --max_restarts 2 is used up\n");
}

TEST_CASE("the backoff grows after early failures up to a limit, until an attempt lasts") {
  const RestartOptions many{.max_restarts = 100, .max_identical_failures = 0};
  std::vector<FailedAttempt> starts;
  for (const int expected : {500, 1000, 2000, 4000, 8000, 16'000, 32'000, 60'000, 60'000}) {
    starts.push_back(min_uptime());
    CHECK(decide(starts, many).after == milliseconds(expected));
  }
  starts.push_back(later());
  CHECK(decide(starts, many).after == milliseconds(500));
}

TEST_CASE("repeated equal early failures end the job") {
  const RestartOptions many{.max_restarts = 10};
  CHECK(decide({min_uptime(), min_uptime()}, many).after);
  const auto max_identical_failures = decide({later(), min_uptime(), min_uptime(), min_uptime()}, many);
  CHECK_FALSE(max_identical_failures.after);
  CHECK(max_identical_failures.line ==
        "accelerate_launch: no restart: the last 3 starts ended within 10 s, all with exit code 1; 7 of 10 restarts "
        "are left unused\n");
  CHECK(decide({min_uptime(), min_uptime("signal 9 (killed)"), min_uptime()}, many).after);
  CHECK(decide({min_uptime(), later(), min_uptime()}, many).after);
}

TEST_CASE("ranks can request a restart if it is enabled, and such restarts do not count as failures") {
  const auto asks = [](milliseconds lasted) {
    return FailedAttempt{.cause = "exit code 75", .lasted = lasted, .restart_requested = true};
  };
  CHECK_FALSE(decide({asks(seconds(20))}, {.max_restarts = 5}).after);
  const RestartOptions one{.max_restarts = 1, .on_request = true};
  CHECK(decide({asks(seconds(20))}, {.on_request = true}).line ==
        "accelerate_launch: the ranks requested a restart (exit code 75) in 0.5 s\n");
  CHECK(decide({asks(seconds(20)), asks(seconds(20)), later()}, one).line ==
        "accelerate_launch: restart 1 of 1 in 0.5 s\n");
  CHECK_FALSE(decide({asks(seconds(20)), later(), later()}, one).after);
  CHECK(decide({later(), asks(seconds(20))}, one).after);
  const auto max_identical_failures =
      decide({asks(milliseconds(9)), asks(milliseconds(9)), asks(milliseconds(9))}, one);
  CHECK_FALSE(max_identical_failures.after);
  CHECK(max_identical_failures.line ==
        "accelerate_launch: no restart: the last 3 starts ended within 10 s, all with exit code 75\n");
}

// SPDX-License-Identifier: Apache-2.0
#include "launch/run/attempt_result.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

using accelerate::ErrorKind;
using accelerate::launch::attempt_result_of;
using accelerate::launch::AttemptResult;
using accelerate::launch::LaunchError;
using accelerate::launch::parse_attempt_result;
using accelerate::launch::throw_if_refused;
using accelerate::launch::to_text;

TEST_CASE("an attempt result survives a round trip through text, and a truncated text is none") {
  const AttemptResult outcome{.exit_code = 137, .cause = "signal 9 (\"killed\")\n"};
  CHECK(parse_attempt_result(to_text(outcome)) == outcome);
  const AttemptResult asks{.exit_code = 75, .cause = "exit code 75", .restart_requested = true};
  CHECK(parse_attempt_result(to_text(asks)) == asks);
  CHECK_FALSE(parse_attempt_result(""));
  CHECK_FALSE(parse_attempt_result(to_text(outcome).substr(0, 8)));
  CHECK_FALSE(parse_attempt_result("[1]"));
}

TEST_CASE("a refusal is rethrown unchanged") {
  throw_if_refused({.exit_code = 3, .cause = "exit code 3"});  // does not throw
  try {
    throw_if_refused(attempt_result_of(LaunchError(ErrorKind::usage, 126, "x cannot be run")));
    FAIL("nothing was thrown");
  } catch (const LaunchError& error) {
    CHECK(error.exit_code() == 126);
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()) == "accelerate_launch: x cannot be run");
  }
  CHECK_THROWS_WITH_AS(throw_if_refused(attempt_result_of(std::runtime_error("no memory"))),
                       "accelerate_launch: no memory", LaunchError);
}

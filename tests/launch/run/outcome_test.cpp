// SPDX-License-Identifier: Apache-2.0
#include "launch/run/outcome.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

using accelerate::ErrorKind;
using accelerate::launch::LaunchError;
using accelerate::launch::Outcome;
using accelerate::launch::outcome_of;
using accelerate::launch::parse_outcome;
using accelerate::launch::throw_refusal;
using accelerate::launch::to_text;

TEST_CASE("an outcome goes through text and comes back, and half of it is none") {
  const Outcome outcome{.exit_code = 137, .cause = "signal 9 (\"killed\")\n"};
  CHECK(parse_outcome(to_text(outcome)) == outcome);
  const Outcome asks{.exit_code = 75, .cause = "exit code 75", .asks_for_another = true};
  CHECK(parse_outcome(to_text(asks)) == asks);
  CHECK_FALSE(parse_outcome(""));
  CHECK_FALSE(parse_outcome(to_text(outcome).substr(0, 8)));
  CHECK_FALSE(parse_outcome("[1]"));
}

TEST_CASE("a refusal is thrown again as it was") {
  throw_refusal({.exit_code = 3, .cause = "exit code 3"});  // does not throw
  try {
    throw_refusal(outcome_of(LaunchError(ErrorKind::usage, 126, "x cannot be run")));
    FAIL("nothing was thrown");
  } catch (const LaunchError& error) {
    CHECK(error.exit_code() == 126);
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()) == "accelerate_launch: x cannot be run");
  }
  CHECK_THROWS_WITH_AS(throw_refusal(outcome_of(std::runtime_error("no memory"))), "accelerate_launch: no memory",
                       LaunchError);
}

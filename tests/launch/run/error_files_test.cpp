// SPDX-License-Identifier: Apache-2.0
#include "launch/run/error_files.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/launch/scratch.hpp"

using accelerate::base::ErrorRecord;
using accelerate::launch::earlier_error;
using accelerate::launch::read_error_record;

TEST_CASE("a rank's error file is read, and an unreadable one counts as missing") {
  const testing::Scratch scratch;
  CHECK_FALSE(read_error_record(scratch.path, 0));
  std::ofstream(accelerate::launch::error_file(scratch.path, 1)) << R"({"message": "lost", "timestamp": 7})";
  std::ofstream(accelerate::launch::error_file(scratch.path, 2)) << "{half";
  CHECK(read_error_record(scratch.path, 1) == ErrorRecord{"lost", 7'000'000'000});
  CHECK_FALSE(read_error_record(scratch.path, 2));
}

TEST_CASE("an error is earlier only if both times are known and its own is smaller") {
  CHECK_FALSE(earlier_error({}, 0));
  CHECK_FALSE(earlier_error({{1, {"a", 1}}}, 0));
  CHECK_FALSE(earlier_error({{0, {"a", 1}}, {1, {"b", 2}}}, 0));
  const auto found = earlier_error({{0, {"a", 3}}, {1, {"b", 2}}, {2, {"c", 1}}}, 0);
  REQUIRE(found);
  CHECK(found->first == 2);
  CHECK(found->second.text == "c");
}

// SPDX-License-Identifier: Apache-2.0
#include "launch/run/log_files.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "launch/plan/error.hpp"
#include "tests/launch/scratch.hpp"

using accelerate::launch::open_log;

TEST_CASE("a rank's log is created with its folder and keeps the output of earlier attempts") {
  const testing::Scratch scratch;
  const std::string folder = scratch.path + "/new/logs";
  for (const char* start : {"restart 0, now", "restart 1, later"}) {
    const auto file = open_log(folder, 3, start);
    CHECK(write(file.get(), "loss\n", 5) == 5);
  }
  std::stringstream text;
  text << std::ifstream(folder + "/rank_3.log").rdbuf();
  CHECK(text.str() == "loss\n---- accelerate_launch: restart 1, later ----\nloss\n");
}

TEST_CASE("a folder that cannot be created is named") {
  CHECK_THROWS_WITH_AS(open_log("/dev/null/logs", 0, ""),
                       "accelerate_launch: --log_dir /dev/null/logs cannot be made: Not a directory",
                       accelerate::launch::LaunchError);
  const testing::Scratch scratch;
  std::filesystem::create_directory(scratch.path + "/rank_0.log");
  CHECK_THROWS_WITH_AS(
      open_log(scratch.path, 0, ""),
      ("accelerate_launch: " + scratch.path + "/rank_0.log of --log_dir cannot be opened: Is a directory").c_str(),
      accelerate::launch::LaunchError);
}

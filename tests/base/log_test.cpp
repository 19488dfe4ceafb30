// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/log.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "tests/launch/run.hpp"

namespace base = accelerate::base;
using base::LogLevel;

TEST_CASE("a handler receives lines with their rank context, and only those at or above the level") {
  std::vector<std::string> lines;
  const LogLevel level = base::log_level();
  auto before = base::set_log_handler([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  base::set_log_level(LogLevel::info);
  base::log(LogLevel::info, {.rank = 1, .world_size = 2, .host = "a"}, "{} and {}", 1, 2);
  base::log(LogLevel::debug, {}, "not seen");
  base::log(LogLevel::error, {}, "seen");
  base::set_log_level(level);
  base::set_log_handler(before);
  CHECK(lines == std::vector<std::string>{"[rank 1 of 2, a] 1 and 2", "seen"});
}

TEST_CASE("a line is logged once per rank context and text") {
  std::vector<std::string> lines;
  const LogLevel level = base::log_level();
  auto before = base::set_log_handler([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  base::set_log_level(LogLevel::info);
  base::reset_log_once();
  base::log_once(LogLevel::debug, {}, "{} of {}", 1, 2);  // not logged, so not remembered
  base::log_once(LogLevel::info, {}, "{} of {}", 1, 2);
  base::log_once(LogLevel::info, {}, "{} of {}", 1, 2);
  base::log_once(LogLevel::info, {.rank = 1, .world_size = 2, .host = "a"}, "{} of {}", 1, 2);
  base::log_once(LogLevel::info, {}, "{} of {}", 2, 2);
  base::reset_log_once();
  base::log_once(LogLevel::info, {}, "{} of {}", 1, 2);
  base::set_log_level(level);
  base::set_log_handler(before);
  CHECK(lines == std::vector<std::string>{"1 of 2", "[rank 1 of 2, a] 1 of 2", "2 of 2", "1 of 2"});
}

TEST_CASE("an invalid ACCELERATE_LOG_LEVEL is reported once with the valid levels") {
  const auto start = [](const std::string& level) {
    return testing::Child({"/proc/self/exe", "--test-case=a handler receives lines*"},
                          {{"ACCELERATE_LOG_LEVEL", level}})
        .wait();
  };
  CHECK(start("banana").err ==
        "ACCELERATE_LOG_LEVEL is 'banana', must be debug, info, warning or error; it is warning now\n");
  for (const char* level : {"debug", "info", "warning", "error", "Warning", "DEBUG", ""}) {
    CHECK(start(level).err == "");
    CHECK(start(level).code == 0);
  }
}

TEST_CASE("a handler may log, which bypasses it, and set another handler") {
  std::vector<std::string> lines;
  const auto before = base::set_log_handler([&](LogLevel, std::string_view line) {
    lines.emplace_back(line);
    base::log_once(LogLevel::error, {}, "of the handler");
    base::set_log_handler([&](LogLevel, std::string_view later) { lines.push_back("then " + std::string(later)); });
  });
  base::reset_log_once();
  base::log(LogLevel::error, {}, "one");
  base::log(LogLevel::error, {}, "two");
  base::set_log_handler(before);
  CHECK(lines == std::vector<std::string>{"one", "then two"});
}

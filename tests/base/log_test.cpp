// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/log.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace base = accelerate::base;
using base::LogLevel;

TEST_CASE("a handler receives lines with their place, and only those at or above the level") {
  std::vector<std::string> lines;
  auto before = base::set_log_handler([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  const LogLevel level = base::log_level();
  base::set_log_level(LogLevel::info);
  base::log(LogLevel::info, {.rank = 1, .world_size = 2, .host = "a"}, "{} and {}", 1, 2);
  base::log(LogLevel::debug, {}, "not seen");
  base::log(LogLevel::error, {}, "seen");
  base::set_log_level(level);
  base::set_log_handler(before);
  CHECK(lines == std::vector<std::string>{"[rank 1 of 2, a] 1 and 2", "seen"});
}

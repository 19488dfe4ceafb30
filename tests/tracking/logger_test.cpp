// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/logger.hpp"

#include <doctest/doctest.h>

#include <barrier>
#include <thread>
#include <vector>

using accelerate::tracking::Logger;
using accelerate::tracking::LoggerOptions;
namespace base = accelerate::base;
using base::LogLevel;
using Lines = std::vector<std::string>;

namespace {

/// Collects log lines during its lifetime; the log level is warning.
struct LogLines {
  LogLines() {
    base::reset_log_once();
    base::set_log_level(LogLevel::warning);
    before = base::set_log_handler([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~LogLines() {
    base::set_log_handler(before);
    base::set_log_level(level);
  }
  LogLevel level = base::log_level();
  base::LogHandler before;
  Lines lines;
};

struct Counted {
  int* formatted;
};

}  // namespace

template <>
struct fmt::formatter<Counted> : fmt::formatter<int> {
  auto format(const Counted& value, format_context& context) const {
    return fmt::formatter<int>::format(++*value.formatted, context);
  }
};

TEST_CASE("the main process logs with its rank, other ranks on request") {
  const LogLines log;
  const Logger main(0, 4, {}), third(3, 4, {});
  main.warning("{} and {:.1f}", 1, 2.0);
  third.warning("not logged");
  third.everywhere().error("logged by {}", "all");
  Logger(2, 4, {}, {.main_process_only = false}).warning("by option");
  CHECK(log.lines == Lines{"[rank 0] 1 and 2.0", "[rank 3] logged by all", "[rank 2] by option"});
}

TEST_CASE("a logger has its own level, else the library's; dropped lines are not formatted") {
  const LogLines log;
  int formatted = 0;
  const Logger usual(0, 1, {});
  usual.info("{}", Counted{&formatted});
  usual.debug("{}", Counted{&formatted});
  CHECK(formatted == 0);
  const Logger talkative(0, 1, {}, {.level = LogLevel::info});
  talkative.info("{}", Counted{&formatted});
  talkative.debug("{}", Counted{&formatted});
  const Logger silent(0, 1, {}, {.level = LogLevel::error});
  silent.warning("{}", Counted{&formatted});
  CHECK(log.lines == Lines{"[rank 0] 1"});
  CHECK(talkative.logs_on_this_rank(LogLevel::info));
  CHECK_FALSE(silent.logs_on_this_rank(LogLevel::warning));
  base::set_log_level(LogLevel::debug);
  usual.debug("now");
  CHECK(log.lines.size() == 2);
}

TEST_CASE("once: a repeated line is logged only the first time") {
  const LogLines log;
  const Logger logger = Logger(0, 2, {}).once();
  for (int i = 0; i < 3; ++i) logger.warning("slow {}", i / 2);
  Logger(1, 2, {}).everywhere().once().warning("slow 0");
  CHECK(log.lines == Lines{"[rank 0] slow 0", "[rank 0] slow 1", "[rank 1] slow 0"});
}

TEST_CASE("in order: every rank logs its line, rank 0 first, and ranks that drop theirs wait too") {
  const LogLines log;
  constexpr int64_t ranks = 4;
  std::barrier meeting(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = ranks - 1; rank >= 0; --rank) {
    threads.emplace_back([&, rank] {
      const LoggerOptions options{.level = rank == 2 ? LogLevel::error : LogLevel::info};
      const Logger logger(
          rank, ranks, [&] { meeting.arrive_and_wait(); }, options);
      logger.in_order().info("first of {}", rank);
      logger.in_order().error("then");
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(log.lines == Lines{"[rank 0] first of 0", "[rank 1] first of 1", "[rank 3] first of 3", "[rank 0] then",
                           "[rank 1] then", "[rank 2] then", "[rank 3] then"});
}

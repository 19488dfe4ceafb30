// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/log.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>

namespace accelerate::base {
namespace {

std::string requested_level() {
  const char* text = std::getenv("ACCELERATE_LOG_LEVEL");
  return text == nullptr ? "" : text;
}

std::optional<LogLevel> parse_level(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text == "debug") return LogLevel::debug;
  if (text == "info") return LogLevel::info;
  if (text == "warning" || text.empty()) return LogLevel::warning;
  if (text == "error") return LogLevel::error;
  return std::nullopt;
}

std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level{parse_level(requested_level()).value_or(LogLevel::warning)};
  return level;
}

/// The first query of the level logs a warning if the variable contains no valid level.
void check_requested_level() {
  static std::atomic_flag checked;
  if (checked.test_and_set() || parse_level(requested_level())) return;
  write_log(LogLevel::warning, {},
            fmt::format("ACCELERATE_LOG_LEVEL is '{}', must be debug, info, warning or error; it is warning now",
                        requested_level()));
}

struct Sink {
  std::recursive_mutex mutex;  // recursive, because a handler may log and may replace the handler
  LogHandler handler;
  bool is_handling = false;
  std::set<std::string> logged_once;
};

Sink& sink() {
  static Sink one;
  return one;
}

/// Marks a running handler, because messages from inside it would recurse without end.
struct HandlerScope {
  HandlerScope() { sink().is_handling = true; }
  ~HandlerScope() { sink().is_handling = false; }
  HandlerScope(const HandlerScope&) = delete;
  HandlerScope& operator=(const HandlerScope&) = delete;
};

}  // namespace

LogHandler set_log_handler(LogHandler handler) {
  const std::lock_guard lock(sink().mutex);
  return std::exchange(sink().handler, std::move(handler));
}

void set_log_level(LogLevel level) { current_level() = level; }

LogLevel log_level() {
  check_requested_level();
  return current_level();
}

bool is_first_occurrence(const RankContext& place, std::string_view message) {
  const std::lock_guard lock(sink().mutex);
  return sink().logged_once.insert(prefix(place) + std::string(message)).second;
}

void reset_log_once() {
  const std::lock_guard lock(sink().mutex);
  sink().logged_once.clear();
}

void write_log(LogLevel level, const RankContext& place, std::string_view message) {
  if (level < log_level()) return;
  forward_to_log(level, prefix(place) + std::string(message));
}

void forward_to_log(LogLevel level, std::string_view line) {
  const std::lock_guard lock(sink().mutex);
  if (sink().handler && !sink().is_handling) {
    const LogHandler handler = sink().handler;  // a copy, because the handler may replace itself
    const HandlerScope guard;
    handler(level, line);
  } else {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  }
}

}  // namespace accelerate::base

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/log.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace accelerate::base {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("ACCELERATE_LOG_LEVEL");
  const std::string_view wanted = text == nullptr ? "" : text;
  if (wanted == "debug" || wanted == "DEBUG") return LogLevel::debug;
  if (wanted == "info" || wanted == "INFO") return LogLevel::info;
  if (wanted == "error" || wanted == "ERROR") return LogLevel::error;
  return LogLevel::warning;
}

std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

struct Sink {
  std::mutex mutex;
  LogHandler handler;
};

Sink& sink() {
  static Sink one;
  return one;
}

}  // namespace

LogHandler set_log_handler(LogHandler handler) {
  const std::lock_guard lock(sink().mutex);
  return std::exchange(sink().handler, std::move(handler));
}

void set_log_level(LogLevel level) { current_level() = level; }

LogLevel log_level() { return current_level(); }

void write_log(LogLevel level, const Place& place, std::string_view message) {
  if (level < log_level()) return;
  const std::string line = prefix(place) + std::string(message);
  const std::lock_guard lock(sink().mutex);
  if (sink().handler) {
    sink().handler(level, line);
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

}  // namespace accelerate::base

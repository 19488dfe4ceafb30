// SPDX-License-Identifier: Apache-2.0
// Log lines of the library. They go to stderr, never to stdout, and a handler of the user's can take them.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::base {

enum class LogLevel { debug, info, warning, error };

/// Receives every line at or above the level, without a newline. Called from any thread, one call at a time.
using LogHandler = std::function<void(LogLevel, std::string_view line)>;

/// Replaces the handler of this process; an empty one restores stderr. Returns the previous handler.
LogHandler set_log_handler(LogHandler handler);

/// Lines below it are dropped. The start value is ACCELERATE_LOG_LEVEL (debug, info, warning, error), else warning; for
/// another word a line says so.
void set_log_level(LogLevel level);
[[nodiscard]] LogLevel log_level();

/// One line "[rank 3 of 8, gpu-b] message".
void write_log(LogLevel level, const Place& place, std::string_view message);

/// The line as it is, whatever the level: of those who have a level of their own.
void pass_to_log(LogLevel level, std::string_view line);

template <typename... Args>
void log(LogLevel level, const Place& place, fmt::format_string<Args...> format, Args&&... args) {
  if (level < log_level()) return;
  write_log(level, place, fmt::format(format, std::forward<Args>(args)...));
}

/// True once per line; forget_lines() starts anew.
bool is_new_line(const Place& place, std::string_view message);
void forget_lines();

/// The same, but a line that this process said before is not said again: for what every Accelerator finds out anew.
template <typename... Args>
void log_once(LogLevel level, const Place& place, fmt::format_string<Args...> format, Args&&... args) {
  if (level < log_level()) return;
  const std::string message = fmt::format(format, std::forward<Args>(args)...);
  if (is_new_line(place, message)) write_log(level, place, message);
}

}  // namespace accelerate::base

// SPDX-License-Identifier: Apache-2.0
// Log lines of the library. They go to stderr (never to stdout) or to a user-defined handler.
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

/// Messages below this level are dropped. The initial value is ACCELERATE_LOG_LEVEL (debug, info, warning, error); if
/// unset, warning. An invalid value is reported by one message.
void set_log_level(LogLevel level);
[[nodiscard]] LogLevel log_level();

/// Logs one line: "[rank 3 of 8, gpu-b] message".
void write_log(LogLevel level, const RankContext& place, std::string_view message);

/// Writes the line at any level, for callers with a level of their own.
void forward_to_log(LogLevel level, std::string_view line);

template <typename... Args>
void log(LogLevel level, const RankContext& place, fmt::format_string<Args...> format, Args&&... args) {
  if (level < log_level()) return;
  write_log(level, place, fmt::format(format, std::forward<Args>(args)...));
}

/// Returns true the first time for each line. reset_log_once() clears the history.
bool is_first_occurrence(const RankContext& place, std::string_view message);
void reset_log_once();

/// As log(), but a line that this process has already logged is dropped. For messages that every Accelerator would
/// repeat.
template <typename... Args>
void log_once(LogLevel level, const RankContext& place, fmt::format_string<Args...> format, Args&&... args) {
  if (level < log_level()) return;
  const std::string message = fmt::format(format, std::forward<Args>(args)...);
  if (is_first_occurrence(place, message)) write_log(level, place, message);
}

}  // namespace accelerate::base

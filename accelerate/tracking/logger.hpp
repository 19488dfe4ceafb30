// SPDX-License-Identifier: Apache-2.0
// Logger for the program's own log lines, which appear beside those of the library.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "accelerate/base/log.hpp"

namespace accelerate::tracking {

struct LoggerOptions {
  /// Messages below this level are dropped. If unset, the library's level: ACCELERATE_LOG_LEVEL, otherwise warning.
  std::optional<base::LogLevel> level{};
  /// If true, only the main process logs; otherwise every rank does.
  bool main_process_only = true;
};

/// Logs lines "[rank 3] message" to the library's destination: stderr, or the handler of set_log_handler(). A value
/// type. everywhere(), in_order() and once() return modified copies and can be combined:
///
///   logger.info("{} batches", loader.size());             // the main process
///   logger.everywhere().warning("slow: {:.1f} s", t);     // every rank that calls it
///   logger.in_order().info("{} samples", n);              // every rank, rank 0 first
///
/// Thread-safe, except for in_order(): all ranks must make its calls in one order.
class Logger {
 public:
  /// \param barrier  Returns after all ranks have called it; may be empty for one rank.
  Logger(int64_t rank, int64_t world_size, std::function<void()> barrier, const LoggerOptions& options = {})
      : rank_(rank), world_size_(world_size), barrier_(std::move(barrier)), options_(options) {}

  [[nodiscard]] Logger everywhere() const {
    Logger other = *this;
    other.options_.main_process_only = false;
    return other;
  }
  /// Every rank logs, one after another. Each call is collective at any level: all ranks must make the same calls.
  [[nodiscard]] Logger in_order() const {
    Logger other = everywhere();
    other.in_order_ = true;
    return other;
  }
  /// Drops a line that this rank has already logged.
  [[nodiscard]] Logger once() const {
    Logger other = *this;
    other.once_ = true;
    return other;
  }

  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    log(base::LogLevel::debug, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    log(base::LogLevel::info, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    log(base::LogLevel::warning, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    log(base::LogLevel::error, format, std::forward<Args>(args)...);
  }
  /// A dropped line costs one comparison and is not formatted.
  template <typename... Args>
  void log(base::LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    if (logs_on_this_rank(level)) {
      log_line(level, fmt::format(format, std::forward<Args>(args)...));
    } else if (in_order_) {
      run_in_rank_order([] {});
    }
  }

  /// True if this rank logs messages of that level.
  [[nodiscard]] bool logs_on_this_rank(base::LogLevel level) const {
    return (rank_ == 0 || !options_.main_process_only) && level >= options_.level.value_or(base::log_level());
  }

 private:
  void log_line(base::LogLevel level, std::string_view message) const;
  void run_in_rank_order(const std::function<void()>& my_turn) const;

  int64_t rank_;
  int64_t world_size_;
  std::function<void()> barrier_;
  LoggerOptions options_;
  bool in_order_ = false;
  bool once_ = false;
};

}  // namespace accelerate::tracking

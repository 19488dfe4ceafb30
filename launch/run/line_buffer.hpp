// SPDX-License-Identifier: Apache-2.0
// Cuts the workers' output into lines: complete lines are forwarded, the last ones are kept for failure reports.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace accelerate::launch {

/// The last lines of one worker. A line that is redrawn with \r (a progress bar) counts with its last content.
class Tail {
 public:
  explicit Tail(size_t max_lines = 20, size_t max_line_bytes = 500);
  void add(std::string_view bytes);
  /// The lines, each with a newline; "" if the worker printed nothing.
  [[nodiscard]] std::string text() const;

 private:
  size_t max_lines_;
  size_t max_line_bytes_;
  std::deque<std::string> lines_;
  std::string open_;
  bool returned_ = false;  // the last byte was \r: the next character restarts the line
};

/// Joins the pieces from a pipe into whole lines, so that lines of several ranks do not mix.
class LineBuffer {
 public:
  using Clock = std::chrono::steady_clock;
  /// Maximum wait for the end of a line. Progress bars never end theirs.
  static constexpr std::chrono::milliseconds kMaxWait{50};

  /// \returns the bytes that can be written now: everything up to the last \n or \r.
  std::string add(std::string_view bytes, Clock::time_point now);
  /// \returns the partial line if it has waited long enough, or always if at_end is true.
  std::string flush(Clock::time_point now, bool at_end = false);
  [[nodiscard]] bool empty() const noexcept { return held_.empty(); }

 private:
  std::string held_;
  Clock::time_point since_{};
};

}  // namespace accelerate::launch

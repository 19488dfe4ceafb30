// SPDX-License-Identifier: Apache-2.0
// What workers print, cut into lines: whole ones are passed on, the last ones are kept for the report of a failure.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace accelerate::launch {

/// The last lines of one worker. A line that was drawn over with \r (a progress bar) counts as its last state.
class Tail {
 public:
  explicit Tail(size_t max_lines = 20, size_t max_line_bytes = 500);
  void add(std::string_view bytes);
  /// Each line ends with a newline; empty when nothing was printed.
  [[nodiscard]] std::string text() const;

 private:
  size_t max_lines_;
  size_t max_line_bytes_;
  std::deque<std::string> lines_;
  std::string open_;
  bool returned_ = false;  // the last byte was \r: the next character restarts the line
};

/// Joins the pieces a pipe delivers to whole lines, so that lines of several ranks do not mix.
class LineBuffer {
 public:
  using Clock = std::chrono::steady_clock;
  /// How long the beginning of a line may wait for its end: progress bars never send one.
  static constexpr std::chrono::milliseconds patience{50};

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

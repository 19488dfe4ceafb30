// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <vector>

namespace accelerate::tracking {
namespace {

/// Screen rows that this process's bars occupy.
struct Screen {
  std::mutex mutex;
  std::vector<bool> rows;
};

Screen& screen() {
  static Screen one;
  return one;
}

int64_t take_row() {
  const std::lock_guard lock(screen().mutex);
  auto& rows = screen().rows;
  size_t row = 0;
  while (row < rows.size() && rows[row]) ++row;
  if (row == rows.size()) rows.push_back(false);
  rows[row] = true;
  return static_cast<int64_t>(row);
}

void give_row(int64_t row) {
  const std::lock_guard lock(screen().mutex);
  screen().rows[static_cast<size_t>(row)] = false;
}

bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale(value);
    return locale.find("UTF-8") != std::string_view::npos || locale.find("utf8") != std::string_view::npos;
  }
  return false;
}

int64_t terminal_width(int descriptor) {
  constexpr int64_t usual = 80;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return usual;
  return size.ws_col;
}

/// Write errors are ignored, because a closed terminal must not stop the program.
void put(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t taken = ::write(descriptor, text.data(), text.size());
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return;
    text.remove_prefix(static_cast<size_t>(taken));
  }
}

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

ProgressBar::ProgressBar(const ProgressOptions& options)
    : options_(options),
      meter_{
          .description = options.description, .unit = options.unit, .total = options.total, .utf8 = is_utf8_locale()},
      shown_(!options.disable),
      terminal_(shown_ && ::isatty(options.output) == 1),
      begin_(Clock::now()),
      next_(begin_),
      measured_(begin_) {
  if (!shown_) return;
  row_ = take_row();
  if (terminal_) {
    draw();
  } else {
    next_ += options_.line_interval;
  }
}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::measure() {
  const auto now = Clock::now();
  const double passed = seconds(now - measured_);
  const auto steps = static_cast<double>(meter_.done - measured_steps_);
  meter_.elapsed = seconds(now - begin_);
  if (steps <= 0 || passed <= 0) return;
  // Exponential smoothing as in tqdm: weight 0.3 for the newest measurement, 0.7 for all before it.
  constexpr double weight = 0.3;
  recent_steps_ = weight * steps + (1 - weight) * recent_steps_;
  recent_seconds_ = weight * passed + (1 - weight) * recent_seconds_;
  meter_.rate = recent_steps_ / recent_seconds_;
  measured_ = now;
  measured_steps_ = meter_.done;
}

std::string ProgressBar::line(bool last) {
  measure();
  if (last) meter_.rate.reset();
  meter_.width = options_.width.value_or(terminal_ ? terminal_width(options_.output) : 80);
  return meter_line(meter_);
}

void ProgressBar::draw() {
  // Without a terminal, finish() writes the line of the last step.
  const bool left_to_finish = !terminal_ && meter_.total && meter_.done == *meter_.total;
  if (!left_to_finish) write_line(line(false), false);
  next_ = Clock::now() + (terminal_ ? options_.interval : options_.line_interval);
}

void ProgressBar::write_line(const std::string& text, bool last) const {
  if (!terminal_) return put(options_.output, text + "\n");
  const bool stays_on_screen = last && row_ == 0 && options_.leave;
  const std::string down(static_cast<size_t>(row_), '\n');
  std::string up;
  for (int64_t row = 0; row < row_; ++row) up += "\x1b[A";
  const std::string erased = "\r\x1b[K";
  const std::lock_guard lock(screen().mutex);
  put(options_.output,
      down + erased + (last && !stays_on_screen ? "" : text) + (stays_on_screen ? "\n" : up + (last ? "\r" : "")));
}

void ProgressBar::finish() noexcept {
  if (!shown_) return;
  shown_ = false;
  try {
    const std::string text = line(true);
    // Without a terminal, a short nested bar is not printed.
    const bool worth_a_line = terminal_ || row_ == 0 || Clock::now() - begin_ >= options_.line_interval;
    if (worth_a_line) write_line(text, true);
    give_row(row_);
  } catch (...) {  // no memory for the text
  }
}

}  // namespace accelerate::tracking

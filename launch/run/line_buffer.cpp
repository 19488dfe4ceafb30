// SPDX-License-Identifier: Apache-2.0
#include "launch/run/line_buffer.hpp"

#include <utility>

namespace accelerate::launch {
Tail::Tail(size_t max_lines, size_t max_line_bytes) : max_lines_(max_lines), max_line_bytes_(max_line_bytes) {}

void Tail::add(std::string_view bytes) {
  // Skips all lines that would not be kept.
  auto from = bytes.size();
  for (size_t lines = 0; lines <= max_lines_ && from > 0; ++lines) {
    const auto newline = bytes.rfind('\n', from - 1);
    from = newline == std::string_view::npos ? 0 : newline;
  }
  if (from > 0) {
    lines_.clear();
    open_.clear();
    returned_ = false;
    bytes.remove_prefix(from + 1);
  }
  for (const char c : bytes) {
    if (c == '\n') {
      lines_.push_back(std::exchange(open_, ""));
      if (lines_.size() > max_lines_) lines_.pop_front();
      returned_ = false;
    } else if (c == '\r') {
      returned_ = true;
    } else {
      if (std::exchange(returned_, false)) open_.clear();
      if (open_.size() < max_line_bytes_) open_ += c;
    }
  }
}

std::string Tail::text() const {
  std::string result;
  const size_t skip = !open_.empty() && lines_.size() == max_lines_ ? 1 : 0;
  for (size_t i = skip; i < lines_.size(); ++i) result += lines_[i] + "\n";
  if (!open_.empty()) result += open_ + "\n";
  return result;
}

std::string LineBuffer::add(std::string_view bytes, Clock::time_point now) {
  const bool was_empty = held_.empty();
  held_ += bytes;
  const auto end = held_.find_last_of("\n\r");
  std::string ready;
  if (end != std::string::npos) {
    ready = held_.substr(0, end + 1);
    held_.erase(0, end + 1);
  }
  if (was_empty || !ready.empty()) since_ = now;
  return ready;
}

std::string LineBuffer::flush(Clock::time_point now, bool at_end) {
  if (!at_end && now - since_ < kMaxWait) return "";
  return std::exchange(held_, "");
}

}  // namespace accelerate::launch

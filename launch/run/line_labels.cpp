// SPDX-License-Identifier: Apache-2.0
#include "launch/run/line_labels.hpp"

#include <fmt/format.h>

#include <utility>

namespace accelerate::launch {

std::string Labels::prefix(int64_t rank) const {
  if (!colours_) return fmt::format("[rank {}] ", rank);
  constexpr int64_t red = 31;  // followed by green, yellow, blue, magenta, cyan
  return fmt::format("\x1b[{}m[rank {}]\x1b[0m ", red + rank % 6, rank);
}

std::string Labels::label(int64_t rank, size_t stream, std::string_view bytes) {
  std::string text;
  if (bytes.empty()) return text;
  if (open_ && *open_ != stream) {
    text += '\n';
    open_.reset();
    returned_ = false;
  }
  const std::string own = prefix(rank);
  for (const char c : bytes) {
    if (c == '\n') {
      if (!open_) text += own;
      open_.reset();
      returned_ = false;
    } else if (c == '\r') {
      returned_ = true;
    } else if (!open_ || std::exchange(returned_, false)) {
      text += own;
      open_ = stream;
      returned_ = false;
    }
    text += c;
  }
  return text;
}

}  // namespace accelerate::launch

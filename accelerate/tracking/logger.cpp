// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/logger.hpp"

#include <string>

namespace accelerate::tracking {

void Logger::log_line(base::LogLevel level, std::string_view message) const {
  const std::string line = fmt::format("[rank {}] {}", rank_, message);
  const auto speak = [&] {
    if (!once_ || base::is_first_occurrence({}, line)) base::forward_to_log(level, line);
  };
  in_order_ ? run_in_rank_order(speak) : speak();
}

void Logger::run_in_rank_order(const std::function<void()>& my_turn) const {
  for (int64_t turn = 0; turn < world_size_; ++turn) {
    if (turn == rank_) my_turn();
    if (barrier_) barrier_();
  }
}

}  // namespace accelerate::tracking

// SPDX-License-Identifier: Apache-2.0
#include "launch/run/restarts.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accelerate::launch {
namespace {

double seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

/// How many of the last starts failed at once; alike: by the last one's cause.
size_t failed_at_once(const std::vector<FailedStart>& starts, const RestartOptions& options, bool alike) {
  const auto other = std::find_if(starts.rbegin(), starts.rend(), [&](const FailedStart& start) {
    return start.lasted >= options.at_once || (alike && start.cause != starts.back().cause);
  });
  return static_cast<size_t>(other - starts.rbegin());
}

std::chrono::milliseconds backoff(size_t in_a_row, const RestartOptions& options) {
  auto wait = options.backoff;
  for (size_t i = 1; i < in_a_row && wait < options.longest_backoff; ++i) wait *= 2;
  return std::min(wait, options.longest_backoff);
}

}  // namespace

RestartDecision decide(const std::vector<FailedStart>& starts, const RestartOptions& options) {
  if (options.max_restarts == 0) return {};
  const auto used = static_cast<int64_t>(starts.size()) - 1;
  if (used >= options.max_restarts) {
    return {.line = fmt::format("accelerate_launch: no restart: --max_restarts {} is used up\n", options.max_restarts)};
  }
  const size_t alike = failed_at_once(starts, options, true);
  if (options.hopeless > 0 && alike >= options.hopeless) {
    return {.line = fmt::format(
                "accelerate_launch: no restart: the last {} starts ended within {:g} s, all with {}; {} of {} restarts "
                "are left unused\n",
                alike, seconds_of(options.at_once), starts.back().cause, options.max_restarts - used,
                options.max_restarts)};
  }
  const auto wait = backoff(failed_at_once(starts, options, false), options);
  return {.after = wait,
          .line = fmt::format("accelerate_launch: restart {} of {} in {:g} s\n", used + 1, options.max_restarts,
                              seconds_of(wait))};
}

}  // namespace accelerate::launch

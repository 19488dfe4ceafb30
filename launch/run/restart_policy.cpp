// SPDX-License-Identifier: Apache-2.0
#include "launch/run/restart_policy.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accelerate::launch {
namespace {

double seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

/// Number of last consecutive attempts that failed early. If same_cause is true, only those with the cause of the last
/// one.
size_t failed_at_once(const std::vector<FailedAttempt>& starts, const RestartOptions& options, bool same_cause) {
  const auto other = std::find_if(starts.rbegin(), starts.rend(), [&](const FailedAttempt& start) {
    return start.lasted >= options.min_uptime || (same_cause && start.cause != starts.back().cause);
  });
  return static_cast<size_t>(other - starts.rbegin());
}

std::chrono::milliseconds backoff(size_t in_a_row, const RestartOptions& options) {
  auto wait = options.backoff;
  for (size_t i = 1; i < in_a_row && wait < options.max_backoff; ++i) wait *= 2;
  return std::min(wait, options.max_backoff);
}

}  // namespace

RestartDecision decide(const std::vector<FailedAttempt>& starts, const RestartOptions& options) {
  const FailedAttempt& last = starts.back();
  if (last.restart_requested ? !options.on_request : options.max_restarts == 0) return {};
  const auto failed =
      std::count_if(starts.begin(), starts.end(), [](const auto& each) { return !each.restart_requested; });
  if (!last.restart_requested && failed > options.max_restarts) {
    return {.line = fmt::format("accelerate_launch: no restart: --max_restarts {} is used up\n", options.max_restarts)};
  }
  const size_t same_failures = failed_at_once(starts, options, true);
  if (options.max_identical_failures > 0 && same_failures >= options.max_identical_failures) {
    auto line = fmt::format("accelerate_launch: no restart: the last {} starts ended within {:g} s, all with {}",
                            same_failures, seconds_of(options.min_uptime), last.cause);
    const int64_t left = options.max_restarts - failed + 1;
    if (!last.restart_requested) line += fmt::format("; {} of {} restarts are left unused", left, options.max_restarts);
    return {.line = line + "\n"};
  }
  const auto wait = backoff(failed_at_once(starts, options, false), options);
  const auto reason = last.restart_requested ? fmt::format("the ranks requested a restart ({})", last.cause)
                                             : fmt::format("restart {} of {}", failed, options.max_restarts);
  return {.after = wait, .line = fmt::format("accelerate_launch: {} in {:g} s\n", reason, seconds_of(wait))};
}

}  // namespace accelerate::launch

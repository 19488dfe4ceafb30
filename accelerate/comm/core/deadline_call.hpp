// SPDX-License-Identifier: Apache-2.0
// Deadlines for calls into libraries without one. Private.
#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace accelerate::comm {

/// Later deadlines than this would overflow the clock.
inline constexpr std::chrono::milliseconds kMaxWait = std::chrono::hours(24 * 365 * 10);

/// Returns the result of f, or rethrows its exception, if f ends before the deadline. Otherwise returns nothing, and
/// the thread that runs f is abandoned with everything f owns; f must therefore not hold references to the caller's
/// variables.
template <typename F>
std::optional<std::invoke_result_t<F>> run_with_deadline(std::chrono::steady_clock::time_point deadline, F f) {
  std::packaged_task<std::invoke_result_t<F>()> task(std::move(f));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace accelerate::comm

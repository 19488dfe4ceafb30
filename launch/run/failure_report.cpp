// SPDX-License-Identifier: Apache-2.0
#include "launch/run/failure_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include <cctype>
#include <cstring>

namespace accelerate::launch {
namespace {

/// "worker 3", "workers 0 and 2", "workers 0, 2 and 3", "41 workers"
std::string name(const std::vector<int64_t>& ranks) {
  if (ranks.size() == 1) return fmt::format("worker {}", ranks.front());
  if (ranks.size() > 4) return fmt::format("{} workers", ranks.size());
  return fmt::format("workers {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

/// "ended first, exit code 3"
std::string what_happened(const Failure& failure) {
  std::string text = failure.ended_before.empty() ? fmt::format("ended first, {}", failure.cause)
                                                  : fmt::format("failed first, {}, after {} had ended with exit code 0",
                                                                failure.cause, name(failure.ended_before));
  if (!failure.suspended.empty()) {
    text += fmt::format(", while {} {} suspended by a signal", name(failure.suspended),
                        failure.suspended.size() == 1 ? "was" : "were");
  }
  return text + (failure.others_were_stopped ? "; the others were stopped" : "");
}

}  // namespace

std::string describe(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  std::string words = strsignal(WTERMSIG(status));
  if (words.size() > 1 && std::islower(static_cast<unsigned char>(words[1])) != 0) {
    words[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(words[0])));
  }
  return fmt::format("signal {} ({})", WTERMSIG(status), words);
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string failure_report(const Failure& failure, const JobEnd& end) {
  const auto who = fmt::format("accelerate_launch: worker {} ({}, pid {})", failure.rank, end.host, failure.pid);
  const auto lines = (end.last_lines.empty() ? "It printed nothing.\n" : "Its last lines follow.\n") + end.last_lines;
  if (failure.never_came) {
    return fmt::format("accelerate_launch: {} ({}, pid {}); all were stopped. {}", failure.cause, end.host, failure.pid,
                       lines);
  }
  if (end.signal != 0) {
    return fmt::format("{} ended with {} after signal {} was passed on.\n", who, failure.cause, end.signal);
  }
  if (end.workers == 1) return fmt::format("{} ended with {}.\n", who, failure.cause);
  return fmt::format("{} {}. {}", who, what_happened(failure), lines);
}

}  // namespace accelerate::launch

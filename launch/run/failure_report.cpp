// SPDX-License-Identifier: Apache-2.0
#include "launch/run/failure_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include <array>
#include <cctype>
#include <cstring>
#include <ctime>

namespace accelerate::launch {
namespace {

/// Returns "worker 3", "workers 0 and 2", "workers 0, 2 and 3" or "41 workers".
std::string name_ranks(const std::string& noun, const std::vector<int64_t>& ranks) {
  if (ranks.size() == 1) return fmt::format("{} {}", noun, ranks.front());
  if (ranks.size() > 4) return fmt::format("{} {}s", ranks.size(), noun);
  return fmt::format("{}s {} and {}", noun, fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

/// Returns "ended first, exit code 3".
std::string what_happened(const Failure& failure, const std::string& noun) {
  std::string text = failure.ended_before.empty() ? fmt::format("ended first, {}", failure.cause)
                                                  : fmt::format("failed first, {}, after {} had ended with exit code 0",
                                                                failure.cause, name_ranks(noun, failure.ended_before));
  if (!failure.suspended.empty()) {
    text += fmt::format(", while {} {} suspended by a signal", name_ranks(noun, failure.suspended),
                        failure.suspended.size() == 1 ? "was" : "were");
  }
  return text + (failure.others_terminated ? "; the others were stopped" : "");
}

/// The lines without those that show the error.
std::string without(std::string lines, const std::string& error) {
  const auto at = error.empty() ? std::string::npos : lines.find(error);
  if (at == std::string::npos) return lines;
  const auto line_before = at == 0 ? std::string::npos : lines.rfind('\n', at - 1);
  const auto begin = line_before == std::string::npos ? 0 : line_before + 1;
  const auto end = lines.find('\n', at + error.size());
  return lines.erase(begin, end == std::string::npos ? end : end + 1 - begin);
}

/// Returns the error of the worker, if it wrote one, and its last lines.
std::string last_output_text(const JobEnd& end) {
  const auto lines = without(end.last_lines, end.error);
  std::string text = end.error.empty() ? "" : fmt::format("Its error follows.\n{}\n", end.error);
  if (end.earlier_error) {
    text += fmt::format("Worker {} had an error before:\n{}\n", end.earlier_error->first, end.earlier_error->second);
  }
  if (lines.empty()) return text.empty() ? "It printed nothing.\n" : text;
  return fmt::format("{}Its last lines follow.\n{}", text, lines);
}

}  // namespace

std::string wait_status_text(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  std::string words = strsignal(WTERMSIG(status));
  if (words.size() > 1 && std::islower(static_cast<unsigned char>(words[1])) != 0) {
    words[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(words[0])));
  }
  return fmt::format("signal {} ({})", WTERMSIG(status), words);
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string clock_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

std::string failure_report(const Failure& failure, const JobEnd& end) {
  const bool is_machine = end.noun == "machine";  // its own launcher has already reported the details
  const auto place = is_machine ? fmt::format("({}, {})", end.host, end.time)
                                : fmt::format("({}, pid {}, {})", end.host, failure.pid, end.time);
  const auto number = is_machine || end.noun == "worker" ? fmt::format(" {}", failure.rank) : "";
  const auto subject = fmt::format("accelerate_launch: {}{} {}", end.noun, number, place);
  if (failure.did_not_join && failure.pid < 0) {
    return fmt::format("accelerate_launch: {} ({}, {}); the ranks of this machine were stopped\n", failure.cause,
                       end.host, end.time);
  }
  if (failure.did_not_join) {
    return fmt::format("accelerate_launch: {} {}; all were stopped. {}", failure.cause, place, last_output_text(end));
  }
  if (end.signal != 0) {
    return fmt::format("{} ended with {} after signal {} was forwarded.\n", subject, failure.cause, end.signal);
  }
  if (end.workers > 1 && is_machine) {  // the machine's launcher knows which rank failed first
    return fmt::format("{} ended with {}{}.\n", subject, failure.cause,
                       failure.others_terminated ? "; the others were stopped" : "");
  }
  if (end.workers > 1)
    return fmt::format("{} {}. {}", subject, what_happened(failure, end.noun), last_output_text(end));
  if (end.is_one_of_many) return fmt::format("{} ended with {}. {}", subject, failure.cause, last_output_text(end));
  const bool shown = end.error.empty() || end.last_lines.find(end.error) != std::string::npos;
  return fmt::format("{} ended with {}.{}\n", subject, failure.cause, shown ? "" : " Its error follows.\n" + end.error);
}

}  // namespace accelerate::launch

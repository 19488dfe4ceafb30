// SPDX-License-Identifier: Apache-2.0
#include "launch/run/reported_failure.hpp"

#include <algorithm>

#include "accelerate/env/parse.hpp"
#include "launch/run/hang_report.hpp"

namespace accelerate::launch {
namespace {

constexpr size_t kMaxReportLine = 4096;  // limit for the launcher's own lines; lines of the program may be longer

/// Returns the number between two texts, or nothing if a text or the number is missing.
std::optional<int> number_between(std::string_view text, std::string_view before, std::string_view after) {
  if (!text.starts_with(before)) return std::nullopt;
  text.remove_prefix(before.size());
  const auto number = env::parse_integer(text.substr(0, text.find(after)));
  return number && *number >= 1 && *number <= 255 ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

/// Returns the text before the closing words that failure_report() uses for one rank among others.
std::optional<std::string_view> before_last_output(std::string_view text) {
  for (const std::string_view words : {". Its error follows.", ". Its last lines follow.", ". It printed nothing."}) {
    if (text.ends_with(words)) return text.substr(0, text.size() - words.size());
  }
  // A per-rank wrapper cannot read errors of other ranks, so this line is from elsewhere.
  return std::nullopt;
}

}  // namespace

std::optional<ReportedFailure> reported_failure(std::string_view line) {
  constexpr std::string_view ours = "accelerate_launch: worker ";
  constexpr std::string_view how = ") ended with ";
  const auto begin = line.find(ours);  // srun --label prefixes the task number
  if (begin == line.npos) return std::nullopt;
  const auto text = before_last_output(line.substr(begin));
  if (!text) return std::nullopt;
  if (text->find(" has not moved for ") != text->npos && text->ends_with("; all were stopped")) {
    return ReportedFailure{.cause = "a hung rank", .exit_code = kExitCodeOfHang};
  }
  const auto at = text->find(how);
  if (at == text->npos) return std::nullopt;
  const auto cause = text->substr(at + how.size());
  if (const auto code = number_between(cause, "exit code ", " ")) {
    return ReportedFailure{.cause = std::string(cause), .exit_code = *code};
  }
  const auto signal = number_between(cause, "signal ", " (");
  if (!signal || *signal > 127) return std::nullopt;
  return ReportedFailure{.cause = std::string(cause), .exit_code = 128 + *signal};
}

void FirstReportedFailure::add(std::string_view bytes) {
  while (!found_ && !bytes.empty()) {
    const auto end = bytes.find('\n');
    open_ += bytes.substr(0, std::min(end, kMaxReportLine - open_.size()));
    if (end == bytes.npos) return;
    found_ = reported_failure(open_);
    open_.clear();
    bytes.remove_prefix(end + 1);
  }
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "launch/run/told_failure.hpp"

#include <algorithm>

#include "accelerate/env/parse.hpp"
#include "launch/run/hang_report.hpp"

namespace accelerate::launch {
namespace {

constexpr size_t longest_line = 4096;  // limit for the launcher's own lines; lines of the program may be longer

/// Returns the number between two texts, or nothing if a text or the number is missing.
std::optional<int> number_between(std::string_view text, std::string_view before, std::string_view after) {
  if (!text.starts_with(before)) return std::nullopt;
  text.remove_prefix(before.size());
  const auto number = env::parse_integer(text.substr(0, text.find(after)));
  return number && *number >= 1 && *number <= 255 ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

/// Returns the text before the closing words that failure_report() uses for one rank among others.
std::optional<std::string_view> before_last_words(std::string_view text) {
  for (const std::string_view words : {". Its error follows.", ". Its last lines follow.", ". It printed nothing."}) {
    if (text.ends_with(words)) return text.substr(0, text.size() - words.size());
  }
  // A per-rank wrapper cannot read errors of other ranks, so this line is from elsewhere.
  return std::nullopt;
}

}  // namespace

std::optional<ToldFailure> told_failure(std::string_view line) {
  constexpr std::string_view ours = "accelerate_launch: worker ";
  constexpr std::string_view how = ") ended with ";
  const auto begin = line.find(ours);  // srun --label prefixes the task number
  if (begin == line.npos) return std::nullopt;
  const auto text = before_last_words(line.substr(begin));
  if (!text) return std::nullopt;
  if (text->find(" has not moved for ") != text->npos && text->ends_with("; all were stopped")) {
    return ToldFailure{.cause = "a hung rank", .exit_code = exit_code_of_hang};
  }
  const auto at = text->find(how);
  if (at == text->npos) return std::nullopt;
  const auto cause = text->substr(at + how.size());
  if (const auto code = number_between(cause, "exit code ", " ")) {
    return ToldFailure{.cause = std::string(cause), .exit_code = *code};
  }
  const auto signal = number_between(cause, "signal ", " (");
  if (!signal || *signal > 127) return std::nullopt;
  return ToldFailure{.cause = std::string(cause), .exit_code = 128 + *signal};
}

void FirstToldFailure::add(std::string_view bytes) {
  while (!found_ && !bytes.empty()) {
    const auto end = bytes.find('\n');
    open_ += bytes.substr(0, std::min(end, longest_line - open_.size()));
    if (end == bytes.npos) return;
    found_ = told_failure(open_);
    open_.clear();
    bytes.remove_prefix(end + 1);
  }
}

}  // namespace accelerate::launch

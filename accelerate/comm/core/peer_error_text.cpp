// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/peer_error_text.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <regex>
#include <vector>

namespace accelerate::comm {

std::string plain(std::string_view text) {
  // Format of gloo's checks: "[enforce fail at device.cc:84] ifa != nullptr. Unable to find address".
  static const std::regex check(R"(\[enforce fail at [^\]]*\] (.*?\. )?)");
  static const std::regex place(R"(\[[^\] ]*\.(cc|cpp|h|hpp):\d+\] ?)");
  static const std::regex rest(R"(\n(Exception raised from|frame #)[\s\S]*)");
  const auto without = [](const std::string& from, const std::regex& what) {
    return std::regex_replace(from, what, "", std::regex_constants::format_default);
  };
  std::string result = without(without(without(std::string(text), check), place), rest);
  while (!result.empty() && (result.back() == '\n' || result.back() == ' ')) result.pop_back();
  return result;
}

std::string reason_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return plain(c10_error != nullptr ? c10_error->what_without_backtrace() : error.what());
}

std::string connect_failure(std::string_view backend, int64_t ranks, std::chrono::milliseconds timeout,
                            std::chrono::milliseconds waited, std::string_view reason) {
  if (waited >= timeout * 9 / 10) {
    return fmt::format("{} could not connect the {} ranks within {:g} s; a rank did not join or cannot be reached",
                       backend, ranks, seconds(timeout));
  }
  return fmt::format("{} could not connect the {} ranks, it failed after {:.1f} s: {}", backend, ranks, seconds(waited),
                     reason);
}

PeerReport peer_status_text(const CollectiveFingerprint& mine,
                            std::span<const std::optional<CollectiveFingerprint>> answers,
                            std::span<const int64_t> job_ranks) {
  const auto place_of = [](const CollectiveFingerprint& call) {
    if (call.sequence == 0) return fmt::format("a {}", collective_name(call.operation));
    return fmt::format("operation {} ({})", call.sequence, collective_name(call.operation));
  };
  PeerReport report;
  auto& [text, missing] = report;
  std::vector<int64_t> silent;
  for (size_t r = 0; r < answers.size(); ++r) {
    if (!answers[r]) {
      silent.push_back(job_ranks[r]);
      missing.push_back(job_ranks[r]);
    } else if (place_of(*answers[r]) != place_of(mine)) {
      text += fmt::format("{}rank {} is in {}.", text.empty() ? "" : " ", job_ranks[r], place_of(*answers[r]));
      // A message involves only two ranks, so the other ranks are not missing.
      if (mine.sequence > 0 && answers[r]->sequence <= mine.sequence) missing.push_back(job_ranks[r]);
    }
  }
  if (silent.empty()) return report;
  text += fmt::format("{}no response from {} {}.", text.empty() ? "" : " ", silent.size() == 1 ? "rank" : "ranks",
                      fmt::join(silent, ", "));
  return report;
}

}  // namespace accelerate::comm

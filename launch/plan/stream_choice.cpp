// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/stream_choice.hpp"

#include <functional>

#include "accelerate/env/parse.hpp"

namespace accelerate::launch {
namespace {

std::optional<unsigned> parse_streams(std::string_view text) {
  if (text.size() != 1 || text.front() < '0' || text.front() > '3') return std::nullopt;
  return static_cast<unsigned>(text.front() - '0');
}

/// Returns false at the first entry that `take` refuses.
bool each_entry(std::string_view text, const std::function<bool(std::string_view entry)>& take) {
  for (auto comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    if (!take(text.substr(0, comma))) return false;
    text.remove_prefix(comma + 1);
  }
  return take(text);
}

}  // namespace

std::optional<StreamChoice> StreamChoice::parse(std::string_view text) {
  if (const auto everywhere = parse_streams(text)) return StreamChoice(*everywhere);
  auto choice = none();
  const bool understood = each_entry(text, [&](std::string_view entry) {
    const auto colon = entry.find(':');
    if (colon == std::string_view::npos) return false;
    const auto rank = env::parse_integer(entry.substr(0, colon));
    const auto streams = parse_streams(entry.substr(colon + 1));
    if (!rank || *rank < 0 || !streams) return false;
    return choice.by_rank_.emplace(*rank, *streams).second;
  });
  return understood ? std::optional(choice) : std::nullopt;
}

bool StreamChoice::has(int64_t local_rank, size_t stream) const {
  const auto named = by_rank_.find(local_rank);
  const unsigned streams = named == by_rank_.end() ? everywhere_ : named->second;
  return (streams >> stream & 1U) != 0;
}

int64_t StreamChoice::highest_rank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

std::optional<std::vector<int64_t>> parse_rank_filter(std::string_view text) {
  std::vector<int64_t> ranks;
  const bool understood = each_entry(text, [&](std::string_view entry) {
    const auto rank = env::parse_integer(entry);
    if (rank) ranks.push_back(*rank);
    return rank && *rank >= 0;
  });
  return understood ? std::optional(ranks) : std::nullopt;
}

}  // namespace accelerate::launch

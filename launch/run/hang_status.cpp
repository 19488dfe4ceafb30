// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_status.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "accelerate/env/parse.hpp"

namespace accelerate::launch {
namespace {

constexpr std::string_view kStill = "accelerate_launch still\n";
constexpr std::string_view kMoving = "accelerate_launch moving\n";

/// Removes the text before the separator from `text` and returns it.
std::string_view take_until(std::string_view& text, char separator) {
  const auto end = std::min(text.find(separator), text.size());
  const auto word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

std::optional<int64_t> take_number(std::string_view& line) {
  return env::parse_integer(std::string(take_until(line, ' ')));
}

/// Parses "3 9 41 41 all_reduce, operation 41 of world ([1024] float32)".
std::optional<StalledRank> read_rank(std::string_view line) {
  const auto rank = take_number(line);
  const auto beats = take_number(line);
  const auto waiting_in = take_number(line);
  const auto sequence = take_number(line);
  if (!rank || !beats || !waiting_in || !sequence) return std::nullopt;
  StalledRank one{.rank = *rank};
  one.beat = {.beats = static_cast<uint64_t>(*beats),
              .waiting_in = *waiting_in,
              .sequence = *sequence,
              .call = std::string(line)};
  return one;
}

}  // namespace

std::string message_of(const HangStatus& stillness) {
  std::string text(stillness.is_still ? kStill : kMoving);
  for (const auto& [rank, pid, beat, does] : stillness.ranks) {
    std::string call = beat.call;  // a copy, because the rank may write any bytes to its page
    std::replace_if(
        call.begin(), call.end(), [](unsigned char c) { return c < ' '; }, ' ');
    text += fmt::format("{} {} {} {} {}\n", rank, beat.beats, beat.waiting_in, beat.sequence, call);
  }
  return text + "\n";
}

std::optional<HangStatus> parse_hang_status(std::string_view message) {
  if (message == kMoving) return HangStatus{};
  if (!message.starts_with(kStill)) return std::nullopt;
  message.remove_prefix(kStill.size());
  HangStatus stalled_time{.is_still = true, .ranks = {}};
  while (!message.empty()) {
    auto rank = read_rank(take_until(message, '\n'));
    if (!rank) return std::nullopt;
    stalled_time.ranks.push_back(std::move(*rank));
  }
  return stalled_time;
}

}  // namespace accelerate::launch

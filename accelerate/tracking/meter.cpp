// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/meter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace accelerate::tracking {
namespace {

constexpr std::array<std::string_view, 9> kEighths{" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
constexpr std::array<std::string_view, 11> kTenths{" ", "1", "2", "3", "4", "5", "6", "7", "8", "9", "#"};

template <size_t N>
std::string drawn(double share, int64_t columns, const std::array<std::string_view, N>& symbols) {
  constexpr auto steps = static_cast<int64_t>(N - 1);
  const auto filled = static_cast<int64_t>(share * static_cast<double>(columns * steps));
  std::string bar;
  for (int64_t column = 0; column < columns; ++column) {
    bar += symbols[static_cast<size_t>(std::clamp<int64_t>(filled - column * steps, 0, steps))];
  }
  return bar;
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

/// Number of characters; each counts as one column.
int64_t columns_of(std::string_view text) { return std::count_if(text.begin(), text.end(), begins_character); }

std::string cut_to(const std::string& text, int64_t columns) {
  size_t at = 0;
  for (int64_t seen = 0; at < text.size(); ++at) {
    if (begins_character(text[at]) && ++seen > columns) break;
  }
  return text.substr(0, at);
}

std::string rate_text(double rate, const std::string& unit) {
  if (rate <= 0) return "?" + unit + "/s";
  return rate < 1 ? fmt::format("{:5.2f}s/{}", 1 / rate, unit) : fmt::format("{:5.2f}{}/s", rate, unit);
}

}  // namespace

std::string interval_text(double seconds) {
  if (!(seconds >= 0 && seconds < 1e15)) return "?";
  const auto whole = static_cast<int64_t>(seconds);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{:02}:{:02}", minutes, whole % 60);
}

std::string meter_line(const Meter& meter) {
  const double mean = meter.elapsed > 0 ? static_cast<double>(meter.done) / meter.elapsed : 0.0;
  const double rate = meter.rate.value_or(mean);
  const std::string speed = rate_text(rate, meter.unit) + (meter.postfix.empty() ? "" : ", " + meter.postfix);
  const std::string head = meter.description.empty() ? "" : meter.description + ": ";
  const std::string elapsed = interval_text(meter.elapsed);
  // If there are more steps than the total, the total is wrong and counts as unknown.
  if (!meter.total || *meter.total < meter.done || *meter.total == 0) {
    return cut_to(fmt::format("{}{}{} [{}, {}]", head, meter.done, meter.unit, elapsed, speed), meter.width);
  }
  const double share = static_cast<double>(meter.done) / static_cast<double>(*meter.total);
  const double left = rate > 0 ? static_cast<double>(*meter.total - meter.done) / rate : -1;
  const std::string before = fmt::format("{}{:3.0f}%|", head, share * 100);
  const std::string after =
      fmt::format("| {}/{} [{}<{}, {}]", meter.done, *meter.total, elapsed, interval_text(left), speed);
  const int64_t columns = std::max<int64_t>(meter.width - columns_of(before) - columns_of(after), 1);
  const std::string bar = meter.utf8 ? drawn(share, columns, kEighths) : drawn(share, columns, kTenths);
  return cut_to(before + bar + after, meter.width);
}

}  // namespace accelerate::tracking

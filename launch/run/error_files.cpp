// SPDX-License-Identifier: Apache-2.0
#include "launch/run/error_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace accelerate::launch {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

}  // namespace

std::string error_file(const std::string& folder, int64_t rank) {
  return fmt::format("{}/error_{}.json", folder, rank);
}

std::optional<base::ErrorRecord> read_error_record(const std::string& folder, int64_t rank) {
  std::ifstream file(error_file(folder, rank));
  std::string text(kMaxBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return base::parse_error_record(text);
}

std::optional<std::pair<int64_t, base::ErrorRecord>> earlier_error(
    const std::vector<std::pair<int64_t, base::ErrorRecord>>& notes, int64_t rank) {
  const auto own = std::find_if(notes.begin(), notes.end(), [&](const auto& each) { return each.first == rank; });
  const auto oldest = std::min_element(notes.begin(), notes.end(), [](const auto& one, const auto& other) {
    return one.second.time_ns < other.second.time_ns;
  });
  if (own == notes.end() || oldest->second.time_ns >= own->second.time_ns) return std::nullopt;
  return *oldest;
}

}  // namespace accelerate::launch

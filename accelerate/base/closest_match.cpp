// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/closest_match.hpp"

#include <algorithm>
#include <numeric>

namespace accelerate::base {
namespace {

/// Damerau-Levenshtein distance (optimal string alignment).
size_t distance(std::string_view one, std::string_view other) {
  std::vector<size_t> before(other.size() + 1);
  std::vector<size_t> last(other.size() + 1);
  std::vector<size_t> row(other.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= one.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= other.size(); ++j) {
      const size_t change = last[j - 1] + (one[i - 1] == other[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      const bool exchanged = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
      if (exchanged) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[other.size()];
}

}  // namespace

std::optional<std::string> closest_match(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t longest = 100;  // no known name is longer; the cost is quadratic
  if (name.size() > longest) return std::nullopt;
  size_t least = std::min<size_t>(3, name.size() / 3) + 1;
  std::optional<std::string> best;
  for (const auto& each : known) {
    const size_t steps = distance(name, each);
    if (steps >= least) continue;
    least = steps;
    best = each;
  }
  return best;
}

}  // namespace accelerate::base

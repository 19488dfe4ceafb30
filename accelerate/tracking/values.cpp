// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/values.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace accelerate::tracking {
namespace {

/// Upper limits of all possible buckets, in ascending order.
const std::vector<double>& all_limits() {
  static const auto made = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
    std::vector<double> all;
    for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) all.push_back(-*limit);
    all.push_back(0.0);
    all.insert(all.end(), positive.begin(), positive.end());
    all.push_back(std::numeric_limits<double>::max());
    return all;
  }();
  return made;
}

}  // namespace

Values flattened(const Values& values) {
  Values flat;
  for (const auto& [name, value] : values) {
    if (const auto* group = std::get_if<Value::Group>(&value.kind())) {
      for (const auto& [member, number] : *group) flat.emplace_back(name + "/" + member, number);
    } else {
      flat.emplace_back(name, value);
    }
  }
  return flat;
}

std::optional<double> number_of(const Value& value) {
  if (const auto* yes = std::get_if<bool>(&value.kind())) return *yes ? 1.0 : 0.0;
  if (const auto* whole = std::get_if<int64_t>(&value.kind())) return static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&value.kind())) return *number;
  return std::nullopt;
}

Histogram histogram_of(std::span<const double> numbers) {
  const auto& limits = all_limits();
  std::vector<double> counts(limits.size(), 0.0);
  Histogram made{.lowest = std::numeric_limits<double>::max(), .highest = std::numeric_limits<double>::lowest()};
  for (const double number : numbers) {
    if (!std::isfinite(number)) continue;
    made.lowest = std::min(made.lowest, number);
    made.highest = std::max(made.highest, number);
    made.count += 1;
    made.sum += number;
    made.sum_of_squares += number * number;
    // Buckets are half-open: the previous bucket's limit is included, the bucket's own limit is not.
    const auto above = std::upper_bound(limits.begin(), limits.end() - 1, number) - limits.begin();
    counts[static_cast<size_t>(above)] += 1;
  }
  if (made.count == 0) return {};
  const auto filled = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), filled) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), filled);
  // Includes one empty bucket before the first filled one, because its limit is the lower bound of that one.
  const auto begin = std::max<std::ptrdiff_t>(first - 1, 0);
  made.limits.assign(limits.begin() + begin, limits.begin() + last);
  made.counts.assign(counts.begin() + begin, counts.begin() + last);
  return made;
}

}  // namespace accelerate::tracking

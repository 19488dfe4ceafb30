// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/shard_plan.hpp"

#include <algorithm>

namespace accelerate::sharding {
namespace {

constexpr int64_t kAlignment = 64;  // bytes: a cache line, and enough for every vector instruction

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int64_t aligned_elements(int64_t element_bytes) { return std::max<int64_t>(1, kAlignment / element_bytes); }

}  // namespace

ShardPlan plan_shards(std::span<const ShardItem> items, int64_t ranks, int64_t unit_bytes) {
  ShardPlan plan{.ranks = ranks};
  for (size_t i = 0; i < items.size(); ++i) {
    const ShardItem& item = items[i];
    const int64_t step = aligned_elements(item.element_bytes);
    // The last unit of the same key, because parameters of two dtypes may alternate.
    const auto last = std::find_if(plan.units.rbegin(), plan.units.rend(), [&](const ShardUnit& unit) {
      return unit.key == item.key && unit.group == item.group;
    });
    const bool fits = last != plan.units.rend() && last->numel + item.numel <= unit_bytes / item.element_bytes;
    if (!fits) plan.units.push_back({.key = item.key, .group = item.group});
    ShardUnit& unit = fits ? *last : plan.units.back();
    unit.items.push_back(static_cast<int64_t>(i));
    unit.offsets.push_back(unit.numel);
    unit.numel += round_up(item.numel, step);
  }
  for (ShardUnit& unit : plan.units) {
    const int64_t element_bytes = items[static_cast<size_t>(unit.items.front())].element_bytes;
    unit.numel = round_up(unit.numel, ranks * aligned_elements(element_bytes));
  }
  return plan;
}

std::vector<ShardRange> ranges_of(const ShardUnit& unit, std::span<const ShardItem> items, int64_t ranks,
                                  int64_t rank) {
  const int64_t part = unit.numel / ranks;
  const int64_t first = rank * part;
  std::vector<ShardRange> ranges;
  for (size_t i = 0; i < unit.items.size(); ++i) {
    const int64_t begin = std::max<int64_t>(0, first - unit.offsets[i]);
    const int64_t end = std::min(items[static_cast<size_t>(unit.items[i])].numel, first + part - unit.offsets[i]);
    if (begin < end) ranges.push_back({unit.items[i], begin, end, unit.offsets[i] + begin - first});
  }
  return ranges;
}

}  // namespace accelerate::sharding

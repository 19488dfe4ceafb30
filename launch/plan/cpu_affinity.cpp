// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/cpu_affinity.hpp"

#include <cstddef>

namespace accelerate::launch {
namespace {

using Processors = std::vector<int>;

void split(const Processors& processors, size_t ranks, std::vector<Processors>& shares) {
  const size_t count = processors.size();
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (count == 0) {
      shares.emplace_back();
    } else if (ranks > count) {
      shares.push_back({processors[rank % count]});
    } else {
      const auto at = [&](size_t i) { return processors.begin() + static_cast<std::ptrdiff_t>(i * count / ranks); };
      shares.emplace_back(at(rank), at(rank + 1));
    }
  }
}

}  // namespace

std::vector<std::vector<int>> assign_processors(const std::vector<std::vector<int>>& nodes, int64_t ranks) {
  std::vector<Processors> shares;
  const auto count = static_cast<size_t>(ranks);
  if (!nodes.empty() && count % nodes.size() == 0) {
    for (const auto& node : nodes) split(node, count / nodes.size(), shares);
    return shares;
  }
  Processors all;
  for (const auto& node : nodes) all.insert(all.end(), node.begin(), node.end());
  split(all, count, shares);
  return shares;
}

}  // namespace accelerate::launch

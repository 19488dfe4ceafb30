// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "accelerate/data/combinators/subset.hpp"

namespace accelerate::data {

/// How many of `samples` go to each part: the floor of each fraction, and what is left one by one to the first parts,
/// as torch.utils.data.random_split does. Throws Error (usage) for a fraction outside 0 to 1, and for fractions that do
/// not add up to 1.
[[nodiscard]] std::vector<int64_t> split_counts(int64_t samples, std::span<const double> fractions);

/// Numbers of each part: torch.randperm with a CPU generator seeded `seed`, cut.
/// Throws Error (usage) for a negative count, and for counts that do not add up to samples.
[[nodiscard]] std::vector<at::Tensor> random_split_numbers(int64_t samples, std::span<const int64_t> counts,
                                                           uint64_t seed);

template <typename Number>
concept SplitPart = std::integral<Number> || std::floating_point<Number>;

/// The source cut into parts at random: random_split(source, {0.8, 0.2}, 42) or random_split(source, {50000, 10000},
/// 42). Equal to torch.utils.data.random_split with generator=torch.Generator().manual_seed(seed).
///
/// parts   fractions that add up to 1, or counts that add up to the number of samples
template <typename AnySource, SplitPart Number>
[[nodiscard]] std::vector<SourcePtr<batch_of<AnySource>>> random_split(std::shared_ptr<AnySource> source,
                                                                       const std::vector<Number>& parts,
                                                                       uint64_t seed) {
  const auto from = kept("random_split", std::move(source));
  std::vector<int64_t> counts;
  if constexpr (std::floating_point<Number>) {
    counts = split_counts(from->size(), std::vector<double>(parts.begin(), parts.end()));
  } else {
    counts.assign(parts.begin(), parts.end());
  }
  std::vector<SourcePtr<batch_of<AnySource>>> sources;
  for (const at::Tensor& numbers : random_split_numbers(from->size(), counts, seed)) {
    sources.push_back(std::make_shared<detail::Subset<batch_of<AnySource>>>("random_split", from, numbers));
  }
  return sources;
}
template <typename AnySource, SplitPart Number>
[[nodiscard]] auto random_split(std::shared_ptr<AnySource> source, std::initializer_list<Number> parts, uint64_t seed) {
  return data::random_split(std::move(source), std::vector<Number>(parts), seed);
}

}  // namespace accelerate::data

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

/// Number of samples of each part: the floor of each fraction, plus the remainder one by one to the first parts, as in
/// torch.utils.data.random_split. \throws Error (usage) for a fraction outside 0 to 1, and for a sum other than 1.
[[nodiscard]] std::vector<int64_t> split_counts(int64_t samples, std::span<const double> fractions);

/// Sample numbers of each part: torch.randperm with a CPU generator of this seed, cut.
/// \throws Error (usage) for a negative count, and for a sum other than samples.
[[nodiscard]] std::vector<at::Tensor> random_split_numbers(int64_t samples, std::span<const int64_t> counts,
                                                           uint64_t seed);

template <typename Number>
concept SplitPart = std::integral<Number> || std::floating_point<Number>;

/// Splits the source randomly: random_split(source, {0.8, 0.2}, 42) or random_split(source, {50000, 10000}, 42). Equal
/// to torch.utils.data.random_split with generator=torch.Generator().manual_seed(seed).
///
/// \param parts  Fractions with sum 1, or counts with the number of samples as sum.
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

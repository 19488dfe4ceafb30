// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/arange.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/data/combinators/subset.hpp"
#include "accelerate/data/sample.hpp"

namespace accelerate::data {

/// Keeps the samples for which predicate(sample) is true, in their order. A sample is a batch without its first
/// dimension (sample_of). This call reads the whole source once, with epoch 0 and seed 0.
template <typename AnySource, typename Predicate>
[[nodiscard]] SourcePtr<batch_of<AnySource>> filter(std::shared_ptr<AnySource> source, Predicate&& predicate) {
  static_assert(std::is_invocable_r_v<bool, Predicate&, sample_t<batch_of<AnySource>>>,
                "accelerate::data::filter: predicate(sample) is not a bool; a sample is the result of sample_of");
  constexpr int64_t chunk_size = 256;
  auto from = kept("filter", std::move(source));
  std::vector<int64_t> numbers;
  for (int64_t first = 0; first < from->size(); first += chunk_size) {
    const int64_t count = std::min(chunk_size, from->size() - first);
    const auto batch = read_from(*from, at::arange(first, first + count, at::TensorOptions().dtype(at::kLong)), {});
    for (int64_t row = 0; row < count; ++row) {
      if (std::invoke(predicate, sample_of(batch, row, count))) numbers.push_back(first + row);
    }
  }
  return std::make_shared<detail::Subset<batch_of<AnySource>>>("filter", std::move(from), index_tensor(numbers));
}

}  // namespace accelerate::data

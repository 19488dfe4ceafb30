// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/combinators/random_split.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

std::vector<int64_t> split_counts(int64_t samples, std::span<const double> fractions) {
  double sum = 0.0;
  std::vector<int64_t> counts;
  for (const double fraction : fractions) {
    if (!(fraction >= 0.0 && fraction <= 1.0))
      base::fail(ErrorKind::usage, {}, "random_split", "fraction {} is {}, must be 0 to 1", counts.size(), fraction);
    sum += fraction;
    counts.push_back(static_cast<int64_t>(std::floor(static_cast<double>(samples) * fraction)));
  }
  if (std::abs(sum - 1.0) > 1e-9)
    base::fail(ErrorKind::usage, {}, "random_split", "the fractions add up to {}, must be 1", sum);
  int64_t left = samples - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % counts.size(), --left) ++counts[i];
  return counts;
}

std::vector<at::Tensor> random_split_numbers(int64_t samples, std::span<const int64_t> counts, uint64_t seed) {
  int64_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0)
      base::fail(ErrorKind::usage, {}, "random_split", "count {} is {}, must be at least 0", i, counts[i]);
    if (counts[i] > std::numeric_limits<int64_t>::max() - sum)
      base::fail(ErrorKind::usage, {}, "random_split", "count {} is {}, there are {} samples", i, counts[i], samples);
    sum += counts[i];
  }
  if (sum != samples)
    base::fail(ErrorKind::usage, {}, "random_split", "the counts add up to {}, must be {}, the number of samples", sum,
               samples);
  const auto order = at::randperm(samples, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kLong));
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const int64_t count : counts) {
    parts.push_back(order.narrow(0, first, count));
    first += count;
  }
  return parts;
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/split.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "accelerate/base/error.hpp"

namespace accelerate::pipeline {
namespace {

void check_costs(const std::vector<double>& costs, int64_t stages) {
  const auto layers = static_cast<int64_t>(costs.size());
  if (stages < 1)
    base::fail(ErrorKind::usage, {}, "Pipeline", "the number of stages is {}, must be at least 1", stages);
  if (layers < stages) {
    base::fail(ErrorKind::usage, {}, "Pipeline",
               "the model has {} layers, the pipeline {} stages; every stage needs a layer: use fewer ranks, or divide "
               "the layers",
               layers, stages);
  }
  for (size_t i = 0; i < costs.size(); ++i) {
    if (std::isfinite(costs[i]) && costs[i] >= 0) continue;
    base::fail(ErrorKind::usage, {}, "Pipeline", "the cost of layer {} is {}, must be at least 0 and finite", i,
               costs[i]);
  }
}

}  // namespace

/// Dynamic programming: best[s][i] is the cost of the most expensive stage if the layers from i on form s stages.
std::vector<int64_t> balanced_split(const std::vector<double>& costs, int64_t stages) {
  check_costs(costs, stages);
  const size_t layers = costs.size(), count = static_cast<size_t>(stages);
  std::vector<double> sums(layers + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  const auto cost = [&](size_t begin, size_t end) { return sums[end] - sums[begin]; };
  std::vector<std::vector<double>> best(count + 1,
                                        std::vector<double>(layers + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<size_t>> end_of_first(count + 1, std::vector<size_t>(layers + 1, layers));
  for (size_t i = 0; i < layers; ++i) best[1][i] = cost(i, layers);
  for (size_t s = 2; s <= count; ++s) {
    for (size_t i = 0; i + s <= layers; ++i) {
      for (size_t end = i + 1; end + (s - 1) <= layers; ++end) {
        const double most = std::max(cost(i, end), best[s - 1][end]);
        if (most > best[s][i]) continue;  // equal divisions: the later one has the larger first stage
        best[s][i] = most;
        end_of_first[s][i] = end;
      }
    }
  }
  std::vector<int64_t> sizes;
  size_t begin = 0;
  for (size_t s = count; s >= 1; --s) {
    const size_t end = end_of_first[s][begin];
    sizes.push_back(static_cast<int64_t>(end - begin));
    begin = end;
  }
  return sizes;
}

std::vector<int64_t> micro_batch_rows(int64_t rows, int64_t micro_batches) {
  if (rows < 1) base::fail(ErrorKind::usage, {}, "Pipeline", "the batch has {} rows, must have at least 1", rows);
  if (micro_batches < 1) {
    base::fail(ErrorKind::usage, {}, "Pipeline", "micro_batches is {}, must be at least 1", micro_batches);
  }
  const int64_t count = std::min(rows, micro_batches);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < count; ++i) sizes.push_back(rows / count + (i < rows % count ? 1 : 0));
  return sizes;
}

}  // namespace accelerate::pipeline

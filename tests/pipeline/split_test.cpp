// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/split.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/refusal.hpp"

namespace split_testing {
namespace {

using namespace accelerate::pipeline;
using testing::refusal;
using Sizes = std::vector<int64_t>;

double most_expensive(const std::vector<double>& costs, const Sizes& sizes) {
  double most = 0;
  size_t layer = 0;
  for (const int64_t size : sizes) {
    double stage = 0;
    for (int64_t i = 0; i < size; ++i) stage += costs[layer++];
    most = std::max(most, stage);
  }
  return most;
}

/// Tries every division of the layers from `begin` on.
double smallest_maximum(const std::vector<double>& costs, size_t begin, int64_t stages) {
  if (stages == 1)
    return most_expensive({costs.begin() + static_cast<std::ptrdiff_t>(begin), costs.end()},
                          {static_cast<int64_t>(costs.size() - begin)});
  double best = std::numeric_limits<double>::infinity(), first = 0;
  for (size_t end = begin + 1; end + static_cast<size_t>(stages) <= costs.size() + 1; ++end) {
    first += costs[end - 1];
    best = std::min(best, std::max(first, smallest_maximum(costs, end, stages - 1)));
  }
  return best;
}

}  // namespace

TEST_CASE("layers are divided so that the most expensive stage is as cheap as possible") {
  CHECK(balanced_split({1, 1, 1, 1}, 2) == Sizes{2, 2});
  CHECK(balanced_split({1, 1, 1, 1, 1}, 2) == Sizes{3, 2});
  CHECK(balanced_split({5, 1, 1, 1, 1, 1}, 2) == Sizes{1, 5});
  CHECK(balanced_split({1, 1, 6, 1, 1}, 3) == Sizes{2, 1, 2});
  CHECK(balanced_split({3}, 1) == Sizes{1});
  CHECK(balanced_split({0, 0, 0}, 3) == Sizes{1, 1, 1});
}

TEST_CASE("no other division has a cheaper most expensive stage") {
  std::mt19937 random(7);
  for (int64_t layers = 1; layers <= 9; ++layers) {
    std::vector<double> costs;
    for (int64_t i = 0; i < layers; ++i) costs.push_back(static_cast<double>(random() % 20));
    for (int64_t stages = 1; stages <= std::min<int64_t>(layers, 4); ++stages) {
      const Sizes sizes = balanced_split(costs, stages);
      CHECK(sizes.size() == static_cast<size_t>(stages));
      CHECK(*std::min_element(sizes.begin(), sizes.end()) >= 1);
      CHECK(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == layers);
      CHECK(most_expensive(costs, sizes) == doctest::Approx(smallest_maximum(costs, 0, stages)));
    }
  }
}

TEST_CASE("fewer layers than stages, and wrong costs, are refused") {
  CHECK(refusal([] {
          return balanced_split({1, 2}, 3);
        }) ==
        "Pipeline: the model has 2 layers, the pipeline 3 stages; every stage needs a layer: use fewer ranks, or "
        "divide the layers");
  CHECK(refusal([] { return balanced_split({1, 2}, 0); }) == "Pipeline: the number of stages is 0, must be at least 1");
  CHECK(refusal([] {
          return balanced_split({1, -2}, 1);
        }) == "Pipeline: the cost of layer 1 is -2, must be at least 0 and finite");
  CHECK(refusal([] { return balanced_split({std::numeric_limits<double>::infinity()}, 1); }) ==
        "Pipeline: the cost of layer 0 is inf, must be at least 0 and finite");
}

TEST_CASE("micro-batches differ by at most one row, and none is empty") {
  CHECK(micro_batch_rows(8, 4) == Sizes{2, 2, 2, 2});
  CHECK(micro_batch_rows(10, 4) == Sizes{3, 3, 2, 2});
  CHECK(micro_batch_rows(7, 1) == Sizes{7});
  CHECK(micro_batch_rows(2, 4) == Sizes{1, 1});
  CHECK(refusal([] { return micro_batch_rows(0, 2); }) == "Pipeline: the batch has 0 rows, must have at least 1");
  CHECK(refusal([] { return micro_batch_rows(3, 0); }) == "Pipeline: micro_batches is 0, must be at least 1");
}

}  // namespace split_testing

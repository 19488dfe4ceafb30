// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <algorithm>

#include "accelerate/data/memory.hpp"
#include "accelerate/data/sampler.hpp"

using namespace accelerate::data;
using Numbers = std::vector<int64_t>;

namespace {

Numbers drawn(const SamplerPtr& sampler, uint64_t seed, int64_t epoch = 0) {
  const auto order = sampler->order(seed, epoch);
  CHECK((order.scalar_type() == torch::kLong));
  CHECK(order.sizes() == at::IntArrayRef{sampler->size()});
  return {order.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>() + order.numel()};
}

}  // namespace

TEST_CASE("a shuffled epoch equals PyTorch's randperm with seed + epoch") {
  struct Row {
    int64_t n;
    uint64_t seed;
    std::vector<int64_t> order;
  };
  const std::vector<Row> rows{
      {6, 42, {0, 3, 2, 4, 1, 5}},
      {6, 43, {4, 0, 5, 1, 2, 3}},
      {8, 42, {6, 3, 0, 7, 2, 1, 4, 5}},
      {8, 43, {4, 5, 7, 1, 3, 2, 6, 0}},
      {8, 44, {4, 7, 3, 2, 1, 5, 6, 0}},
      {10, 42, {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}},
      {10, 43, {8, 4, 9, 0, 5, 1, 6, 7, 2, 3}},
      {10, 44, {2, 6, 3, 8, 7, 9, 1, 4, 5, 0}},
  };
  for (const auto& row : rows) {
    CHECK(drawn(random_sampler(row.n), row.seed) == row.order);
    if (row.seed > 42) CHECK(drawn(random_sampler(row.n), 42, static_cast<int64_t>(row.seed) - 42) == row.order);
  }
}

TEST_CASE("an order does not use the default generator") {
  torch::manual_seed(1);
  const auto expected = torch::rand(3);
  torch::manual_seed(1);
  (void)random_sampler(100)->order(5, 0);
  (void)weighted_sampler(torch::ones(4), 20)->order(5, 0);
  CHECK(torch::rand(3).equal(expected));
}

TEST_CASE("without a seed each epoch has a new order, and no samples have an empty order") {
  CHECK(drawn(sequential_sampler(4), 42, 3) == Numbers{0, 1, 2, 3});
  CHECK_FALSE(sequential_sampler(4)->seeded());
  CHECK(drawn(random_sampler(0), 42).empty());
  CHECK(drawn(random_sampler_with_replacement(0, 0), 42).empty());
  CHECK(drawn(weighted_sampler(torch::ones(2), 0), 42).empty());
  CHECK(drawn(length_grouped_sampler(torch::empty({0}, torch::kLong), 2), 42).empty());
}

// Samples of PyTorch 2.11 with a generator of seed 43: the samplers of torch.utils.data in the test's name.
TEST_CASE("random_sampler with num_samples, with and without replacement") {
  CHECK(drawn(random_sampler(3, 7), 42, 1) == Numbers{1, 0, 2, 2, 0, 1, 1});
  CHECK(drawn(random_sampler(5, 3), 42, 1) == Numbers{3, 1, 4});
  CHECK(drawn(random_sampler_with_replacement(10, 35), 42, 1) == Numbers{8, 8, 5, 7, 5, 0, 0, 1, 7, 9, 1, 0,
                                                                         4, 4, 7, 2, 1, 9, 6, 3, 9, 9, 5, 5,
                                                                         2, 7, 4, 1, 3, 8, 2, 0, 7, 6, 4});
}

TEST_CASE("weighted_sampler, with and without replacement, for weights of any dtype") {
  CHECK(drawn(weighted_sampler(torch::tensor({1, 2, 3, 4}), 6), 42, 1) == Numbers{3, 2, 1, 3, 3, 2});
  CHECK(drawn(weighted_sampler(torch::tensor({1.F, 2.F, 0.F, 4.F}), 3, false), 42, 1) == Numbers{1, 3, 0});
}

TEST_CASE("more weights than torch.multinomial accepts draw the same samples: an additional zero changes nothing") {
  const int64_t most = int64_t{1} << 24;
  const auto weights = torch::arange(most + 1, torch::kFloat).remainder_(7).add_(0.5);
  weights[most] = 0;
  for (const bool replacement : {true, false}) {
    const auto torchs = drawn(weighted_sampler(weights.slice(0, 0, most), 5, replacement), 42, 1);
    CHECK(drawn(weighted_sampler(weights, 5, replacement), 42, 1) == torchs);
  }
  const auto ends = torch::zeros({most + 2}, torch::kByte);
  ends[0] = 1;
  ends[most + 1] = 3;
  auto both = drawn(weighted_sampler(ends, 2, /*replacement=*/false), 42);
  std::sort(both.begin(), both.end());
  CHECK(both == Numbers{0, most + 1});
  const auto many = drawn(weighted_sampler(ends, 4000), 42);
  CHECK(std::count(many.begin(), many.end(), most + 1) == doctest::Approx(3000).epsilon(0.06));
  CHECK(std::count(many.begin(), many.end(), 0) + std::count(many.begin(), many.end(), most + 1) == 4000);
}

TEST_CASE("subset_sampler in random order and in its own order") {
  const auto indices = torch::tensor({5, 7, 1, 3});
  CHECK(drawn(subset_sampler(indices), 42, 1) == Numbers{5, 7, 3, 1});
  CHECK(drawn(subset_sampler(indices, false), 42, 1) == Numbers{5, 7, 1, 3});
  CHECK_FALSE(subset_sampler(indices, false)->seeded());
  CHECK_THROWS_WITH((void)subset_sampler(torch::tensor({true, false})),
                    "subset_sampler: indices are CPUBoolType, must be integers: the samples' numbers; those of a mask "
                    "are mask.nonzero().flatten()");
}

// Expected values from the function of this name in transformers' trainer_pt_utils, run in Python.
TEST_CASE("get_length_grouped_indices: similar lengths are adjacent, the longest is first") {
  const auto lengths = torch::tensor({3, 9, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8});
  CHECK(drawn(length_grouped_sampler(lengths, 2), 42, 1) ==
        Numbers{13, 19, 8, 16, 9, 10, 0, 17, 12, 14, 11, 4, 6, 15, 18, 7, 1, 5, 3, 2});
  CHECK(drawn(length_grouped_sampler(lengths, 3), 42, 2) ==
        Numbers{15, 9, 10, 12, 14, 0, 6, 7, 4, 13, 5, 3, 1, 19, 16, 8, 11, 18, 17, 2});
  CHECK(drawn(length_grouped_sampler(torch::arange(24) * 7 % 11, 1), 42, 1) ==
        Numbers{3, 9, 12, 4, 7, 22, 6, 20, 13, 5, 19, 0, 23, 18, 21, 10, 16, 8, 14, 17, 1, 15, 2, 11});
}

TEST_CASE("a loader's seed and set_epoch reach every sampler") {
  const auto samples = torch::arange(12);
  const std::vector<SamplerPtr> shuffling{
      random_sampler(12),
      random_sampler(12, 20),
      random_sampler_with_replacement(12, 20),
      weighted_sampler(samples + 1, 20),
      weighted_sampler(samples + 1, 8, /*replacement=*/false),
      subset_sampler(samples.slice(0, 2)),
      length_grouped_sampler(samples * 7 % 5, 2),
      distributed_sampler(12),
      make_sampler(12, [&](uint64_t seed, int64_t epoch) { return samples.roll(static_cast<int64_t>(seed) + epoch); })};
  for (size_t i = 0; i < shuffling.size(); ++i) {
    CAPTURE(i);
    const auto& sampler = shuffling[i];
    auto loader = from_tensors(samples, {}, {.batch_size = 20, .seed = 3, .sampler = sampler});
    const auto pass = [&] {
      const auto data = loader.begin()->data;
      return Numbers{data.const_data_ptr<int64_t>(), data.const_data_ptr<int64_t>() + data.numel()};
    };
    CHECK(pass() == drawn(sampler, 3, 0));
    loader.set_epoch(5);
    CHECK(pass() == drawn(sampler, 3, 5));
    CHECK(pass() == drawn(sampler, 3, 6));
    CHECK(drawn(sampler, 3, 5) != drawn(sampler, 3, 6));
  }
}

TEST_CASE("a sampler copies its arguments") {
  auto indices = torch::tensor({5, 7}), weights = torch::tensor({0.0, 1.0});
  const auto subset = subset_sampler(indices, false);
  const auto weighted = weighted_sampler(weights, 3);
  indices.zero_(), weights.fill_(-1);
  CHECK(drawn(subset, 0) == Numbers{5, 7});
  CHECK(drawn(weighted, 0) == Numbers{1, 1, 1});
}

TEST_CASE("invalid samplers are refused with the values") {
  CHECK_THROWS_WITH((void)sequential_sampler(-1), "sequential_sampler: samples is -1, must be at least 0");
  CHECK_THROWS_WITH((void)random_sampler(0, 3), "random_sampler: 3 draws from 0 samples; there must be one");
  CHECK_THROWS_WITH((void)random_sampler_with_replacement(0, 3),
                    "random_sampler: 3 draws from 0 samples; there must be one");
  CHECK_THROWS_WITH((void)random_sampler_with_replacement(2, -3), "random_sampler: draws is -3, must be at least 0");
  CHECK_THROWS_WITH((void)weighted_sampler(torch::ones({2, 2}), 3),
                    "weighted_sampler: weights has 2 dimensions, must have one");
  CHECK_THROWS_WITH((void)weighted_sampler(torch::tensor({1.0, -1.0}), 3),
                    "weighted_sampler: a weight is negative or not finite; each must be 0 or more");
  CHECK_THROWS_WITH((void)weighted_sampler(torch::tensor({1.0, std::nan("")}), 3),
                    "weighted_sampler: a weight is negative or not finite; each must be 0 or more");
  CHECK_THROWS_WITH((void)weighted_sampler(torch::zeros(4), 3),
                    "weighted_sampler: 3 draws of 0 weights above 0; there must be one");
  CHECK_THROWS_WITH((void)weighted_sampler(torch::tensor({1, 1, 0}), 3, false),
                    "weighted_sampler: 3 draws without replacement of 2 weights above 0; there must be as many");
  CHECK_THROWS_WITH((void)subset_sampler({}), "subset_sampler: indices has 0 dimensions, must have one");
  CHECK_THROWS_WITH((void)length_grouped_sampler(torch::ones(3), 0),
                    "length_grouped_sampler: batch_size is 0, must be at least 1");
}

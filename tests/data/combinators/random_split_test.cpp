// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/random_split.hpp"

using namespace sources;
using Parts = std::vector<Numbers>;

namespace {

Parts shown(const std::vector<data::SourcePtr<data::Batch>>& parts) {
  Parts all;
  for (const auto& part : parts) {
    Numbers numbers(static_cast<size_t>(part->size()));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
    all.push_back(read(part, numbers));
  }
  return all;
}

}  // namespace

// Recorded from torch.utils.data.random_split(range(n), parts, torch.Generator().manual_seed(seed)), torch 2.11.
TEST_CASE("random_split equals PyTorch's for equal seed, with counts and with fractions") {
  CHECK(shown(data::random_split(numbers(10), {7, 3}, 42)) == Parts{{2, 6, 1, 8, 4, 5, 0}, {9, 3, 7}});
  CHECK(shown(data::random_split(numbers(10), {0.3, 0.3, 0.4}, 42)) == Parts{{2, 6, 1}, {8, 4, 5}, {0, 9, 3, 7}});
  CHECK(shown(data::random_split(numbers(11), {0.5, 0.5}, 1)) == Parts{{0, 10, 2, 3, 7, 6}, {4, 8, 1, 9, 5}});
  CHECK(shown(data::random_split(numbers(10), {0.25, 0.25, 0.25, 0.25}, 0)) ==
        Parts{{4, 1, 7}, {5, 3, 9}, {0, 8}, {6, 2}});
  CHECK(shown(data::random_split(numbers(7), {1.0 / 3, 1.0 / 3, 1.0 / 3}, 9)) == Parts{{4, 5, 6}, {0, 2}, {1, 3}});
  CHECK(shown(data::random_split(numbers(5), std::vector<int64_t>{0, 5}, 3)) == Parts{{}, {1, 0, 3, 4, 2}});
}

TEST_CASE("two ranks read their shards of a part, and parts of an empty source are empty") {
  const auto parts = data::random_split(numbers(10), {5, 5}, 42);
  CHECK(two_ranks(parts[0]) == std::vector<std::vector<Numbers>>{{{2, 6}, {4, 2}}, {{1, 8}, {6, 1}}});
  CHECK(read(parts[0], {4, 4, 0}) == Numbers{4, 4, 2});
  CHECK_THROWS_WITH((void)parts[0]->read(index({5})), "random_split: sample 5 is requested, there are 5 samples");
  CHECK(shown(data::random_split(numbers(0), {0.5, 0.5}, 1)) == Parts{{}, {}});
  CHECK(shown(data::random_split(numbers(0), std::vector<int64_t>{}, 1)).empty());
}

TEST_CASE("parts with a wrong sum are refused with both numbers") {
  CHECK_THROWS_WITH((void)data::random_split(numbers(10), {7, 4}, 1),
                    "random_split: the counts add up to 11, must be 10, the number of samples");
  CHECK_THROWS_WITH((void)data::random_split(numbers(10), {11, -1}, 1),
                    "random_split: count 1 is -1, must be at least 0");
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  CHECK_THROWS_WITH((void)data::random_split(numbers(10), {most, most, int64_t{12}}, 1),
                    "random_split: count 1 is 9223372036854775807, there are 10 samples");
  CHECK_THROWS_WITH((void)data::random_split(numbers(10), {0.5, 0.25}, 1),
                    "random_split: the fractions add up to 0.75, must be 1");
  CHECK_THROWS_WITH((void)data::random_split(numbers(10), {1.5, -0.5}, 1),
                    "random_split: fraction 0 is 1.5, must be 0 to 1");
  CHECK_THROWS_WITH((void)data::random_split(numbers(10), {std::nan(""), 0.5}, 1),
                    "random_split: fraction 0 is nan, must be 0 to 1");
}

TEST_CASE("random_split forwards the ReadContext of the pass") {
  const auto parts = data::random_split(std::make_shared<PassSource>(), {1.0}, 0);
  const auto sample = list(in_pass(parts[0]));
  CHECK(Numbers(sample.begin(), sample.begin() + 3) == Numbers{7, 3, 0});
}

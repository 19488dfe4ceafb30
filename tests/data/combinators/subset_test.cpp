// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/subset.hpp"

using namespace sources;

TEST_CASE("subset returns the chosen samples in order, with repeats") {
  const auto some = data::subset(numbers(10), {7, 1, 7, 3});
  CHECK(some->size() == 4);
  CHECK(read(some, {3, 0, 2, 0}) == Numbers{3, 7, 7, 7});
  auto mine = index({5, 6});
  const auto own = data::subset(numbers(10), mine);
  mine[0] = 0;
  CHECK(read(own, {0, 1}) == Numbers{5, 6});
}

TEST_CASE("two ranks read their shards of a subset, and an empty one has no batches") {
  CHECK(two_ranks(data::subset(numbers(10), {9, 8, 7, 6, 5})) ==
        std::vector<std::vector<Numbers>>{{{9, 8}, {5, 9}}, {{7, 6}, {8, 7}}});
  CHECK(two_ranks(data::subset(numbers(10), Numbers{})) == std::vector<std::vector<Numbers>>{{}, {}});
  CHECK(data::subset(numbers(0), Numbers{})->size() == 0);
}

TEST_CASE("subset and its reader refuse a number outside the source") {
  CHECK_THROWS_WITH((void)data::subset(numbers(10), {3, 10}), "subset: sample 10 is requested, there are 10 samples");
  CHECK_THROWS_WITH((void)data::subset(numbers(10), {-1}), "subset: sample -1 is requested, there are 10 samples");
  CHECK_THROWS_WITH((void)data::subset(numbers(10), {3, 4})->read(index({2})),
                    "subset: sample 2 is requested, there are 2 samples");
  CHECK_THROWS_WITH((void)data::subset(numbers(10), torch::zeros({2, 2}, torch::kLong)),
                    "subset: the indices are CPULongType[2, 2], must be [B] int64 on the CPU");
}

TEST_CASE("subset forwards the ReadContext of the pass") {
  CHECK(list(in_pass(data::subset(std::make_shared<PassSource>(), {0, 3}))) == Numbers{7, 3, 0, 3});
}

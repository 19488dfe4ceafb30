// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/take.hpp"

using namespace sources;

TEST_CASE("take returns only the first samples") {
  const auto taken = data::take(numbers(10), 3);
  CHECK(taken->size() == 3);
  CHECK(read(taken, {2, 0, 2}) == Numbers{2, 0, 2});
  CHECK_THROWS_WITH((void)taken->read(index({3})), "take: sample 3 is requested, there are 3 samples");
  CHECK(data::take(numbers(10), 10)->size() == 10);
}

TEST_CASE("two ranks read their shards of take, and an empty source stays empty") {
  CHECK(two_ranks(data::take(numbers(10), 3)) == std::vector<std::vector<Numbers>>{{{0, 1}}, {{2, 0}}});
  CHECK(two_ranks(data::take(numbers(0), 0)) == std::vector<std::vector<Numbers>>{{}, {}});
  CHECK(two_ranks(data::take(numbers(10), 0)) == std::vector<std::vector<Numbers>>{{}, {}});
}

TEST_CASE("take refuses more samples than the source has, with both numbers") {
  CHECK_THROWS_WITH((void)data::take(numbers(10), 11), "take: count is 11, must be 0 to 10, the number of samples");
  CHECK_THROWS_WITH((void)data::take(numbers(10), -1), "take: count is -1, must be 0 to 10, the number of samples");
}

TEST_CASE("take forwards the ReadContext of the pass") {
  CHECK(list(in_pass(data::take(std::make_shared<PassSource>(), 2))) == Numbers{7, 3, 0, 1});
}
